"""PromptSRC: learned tokens in both towers, held near the frozen CLIP and averaged over epochs (Khattak et al., 2023).

Paper: "Self-regulating prompts", ICCV 2023, arXiv:2307.06948. Each of the first nine blocks of both towers has four
learned tokens (:mod:`bolt.methods.common.prompts`). The first block's text tokens start at "a photo of a", all
other tokens are drawn from N(0, 0.02^2). These are 46,080 numbers in ViT-B. t, f and p are the class vectors, features
and probabilities of the prompted towers; t', f' and p' are those of the frozen towers::

    loss = CE + 25 mean|t - t'| + 10 mean|f - f'| + KL(p' || p) / (B C)

The divergence is divided by B C, as in the official code. So it is C times smaller than a mean over the images.

The result is the weighted average of the tokens over all E epochs. The weight of epoch e is proportional to a Gaussian
at e, with mean 0.6 E and standard deviation 0.6 E. The optimiser is SGD with rate 2.5e-3, momentum 0.9 and an L2
penalty of 5e-4 inside the gradient, for 50 epochs of batches of 4. The preset ``base_to_new`` has the official epochs
and Gaussian for new classes. The preset ``cross_dataset`` has those for transfer to other datasets.

What differs from the official code:

- For few-shot the official mean and deviation of the Gaussian are chosen for each dataset: 30 and 30, or 45 and 5
  epochs. Here they are 30 and 30 for all datasets.
- The frozen text vectors are the task's text head, a mean of unit vectors over its prompts. The official code takes
  the mean of raw embeddings over 60 templates of ImageNet.
- The official code averages every weight of both towers in half precision, so rounding changes about half of the frozen
  weights. Here the tokens alone are averaged, in float32.
- The last batch of an epoch is used even if it is smaller than the others. The official code drops it.

Shape legend: B batch, S image side, C classes, D joint embedding width, E epochs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import TowerPasses, register_tower_training
from bolt.methods.common.coop_training import coop_options
from bolt.methods.common.prompts import DeepPromptSettings, TrainedText, prompted_towers
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, adapted, train, trainable_tower
from bolt.training.loop import cross_entropy, restore
from bolt.util.ranges import NotNegative, Positive


@dataclass(frozen=True)
class PromptSrcSettings(DeepPromptSettings):
    """The tokens, the training recipe, the weights of the loss and the average.

    Attributes:
        text_weight, image_weight, logit_weight: weights of the distances to the frozen CLIP's class vectors, features
            and probabilities.
        average_mean, average_deviation: mean and deviation of the Gaussian that gives the weights of the epochs 1 to E,
            as shares of E.
    """

    epochs: int = 50
    text_weight: NotNegative = 25.0
    image_weight: NotNegative = 10.0
    logit_weight: NotNegative = 1.0
    average_mean: float = 0.6
    average_deviation: Positive = 0.6


def epoch_weights(settings: PromptSrcSettings) -> Tensor:
    """Return the weight of each epoch in the average, a Gaussian over epochs: (E,) float64 with sum 1."""
    epochs_E = torch.arange(1, settings.epochs + 1, dtype=torch.float64) / settings.epochs
    return (-0.5 * ((epochs_E - settings.average_mean) / settings.average_deviation).square()).softmax(dim=0)


def losses(
    task: Task, settings: PromptSrcSettings, unit_BD: Tensor, head_CD: Tensor, frozen_BD: Tensor, labels_B: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four weighted terms of the loss.

    They are the cross-entropy and the distances of class vectors, features and logits to those of the frozen CLIP.

    Args:
        unit_BD, head_CD: unit features and class vectors of the prompted towers.
        frozen_BD: unit features of the frozen image tower.
    """
    scale, frozen_CD = task.backbone.logit_scale, task.head_CD.to(head_CD)
    logits_BC = scale * unit_BD @ head_CD.T
    log_p_BC, log_frozen_BC = logits_BC.log_softmax(dim=-1), (scale * frozen_BD @ frozen_CD.T).log_softmax(dim=-1)
    divergence = F.kl_div(log_p_BC, log_frozen_BC, reduction="sum", log_target=True) / log_p_BC.numel()
    return (
        cross_entropy(logits_BC, labels_B),
        settings.text_weight * F.l1_loss(head_CD, frozen_CD),
        settings.image_weight * F.l1_loss(unit_BD, frozen_BD),
        settings.logit_weight * divergence,
    )


def trainable(task: Task, settings: PromptSrcSettings) -> tuple[Trainable, TrainedText]:
    """Return both towers with their loss as one trainable model, and the text tower alone. The tokens are trained.

    Raises the errors of :func:`bolt.methods.common.prompts.prompted_towers`.
    """
    tower, text = prompted_towers(task, settings)

    def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        with torch.no_grad():
            frozen_BD = F.normalize(task.backbone.tower(images_B3SS), dim=-1)
        unit_BD = F.normalize(tower(images_B3SS), dim=-1)
        return torch.stack(losses(task, settings, unit_BD, text.head(), frozen_BD, labels_B)).sum()

    return replace(text.joined(trainable_tower(tower)), loss=loss), text


def tower_passes(support_size: int, settings: PromptSrcSettings) -> TowerPasses:
    """Return the images and the prompts that an adaptation takes through the towers."""
    return replace(settings.passes(settings.epochs, support_size), forward=settings.epochs * support_size)


@register_tower_training(
    title="PromptSRC",
    palette=56,
    summary="learns tokens of both towers, held near the frozen CLIP and averaged over epochs",
    paper="https://arxiv.org/abs/2307.06948",
    tracks=frozenset({"fewshot", "ood"}),
    presets={
        "base_to_new": {"epochs": 20, "average_mean": 0.75, "average_deviation": 0.05},
        "cross_dataset": {"depth": 3, "epochs": 20, "average_mean": 0.3, "average_deviation": 0.5},
    },
    clips_own_tower=True,
    trains_text=lambda settings: True,
    tower_passes=tower_passes,
    training_forwards=2.0,
)
def adapt(task: Task, settings: PromptSrcSettings) -> Adapted:
    """Train the tokens on the support, and average them over the epochs."""
    model, _ = trainable(task, settings)
    averages = [torch.zeros_like(tensor) for tensor in model.parameters]
    weights = epoch_weights(settings).tolist()

    def average(epoch: int, make: Callable[[], Adapted]) -> None:
        for mean, tensor in zip(averages, model.parameters, strict=True):
            mean.add_(tensor.detach(), alpha=weights[epoch])

    recipe = settings.recipe(settings.epochs)
    train(replace(task, after_epoch=average), model, recipe, **coop_options(recipe))
    restore(model.parameters, averages)
    return adapted(task, model)
