"""Tent: trains the layer norms at test time to minimise the entropy of the predictions (Wang et al., 2021).

Paper: "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021, arXiv:2006.10726, equation 1. The test
images come in batches, once. Every batch gives one step of Adam on the mean entropy of its softmax. No label, no source
image and no augmentation is used.

The official code adapts the scales and shifts of batch norms. A vision transformer has none, so the gains and biases of
its layer norms are adapted instead, as is usual: 39,936 numbers in ViT-B, 102,400 in ViT-L/14. A layer norm keeps no
batch statistics, so nothing else changes, and batches of any size work. The text head stays frozen.

As in the official example, the optimiser is Adam with a constant rate of 1e-3, without weight decay, for one pass over
the test images. Batches have 64 images instead of 200, which bounds the memory.

The paper scores every batch as it comes, with the outputs before the step on that batch. Here the tower after the last
step is scored on all test images, as for every method of the track; the two accuracies differ.

At CLIP's logit scale of 100 most predictions have almost no entropy, so few images give a gradient. With too high a
rate or too many passes, the predictions collapse to a single class. ``details`` give the number of classes predicted in
the last batches.

:mod:`bolt.methods.layer_norm` trains the same parameters with another objective.

Shape legend: N test images, B batch, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bolt.clip.tensor_names import layer_norm_names
from bolt.methods.base import TowerPasses, register
from bolt.methods.common.frozen_features import entropies
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.training.adaptation import adapted, trainable_tower
from bolt.training.loop import Curve, PlainRecipe, fit
from bolt.util.ranges import AtLeast1, Checked, Positive

_WATCHED_BATCHES = 4
"""Number of last batches. ``details`` say how many classes are predicted in these batches."""


@dataclass(frozen=True)
class TentSettings(Checked):
    """The training recipe, with the defaults of the official example.

    Attributes:
        epochs: passes over the test images.
        batch_size, learning_rate: hyperparameters of Adam, which takes one step per batch.
    """

    epochs: AtLeast1 = 1
    batch_size: AtLeast1 = 64
    learning_rate: Positive = 1e-3


def mean_entropy(logits_BC: Tensor) -> Tensor:
    """Return the mean entropy of the softmax, in nats. For a saturated softmax the result is zero, not NaN."""
    return entropies(logits_BC.float()).mean()


def minimise_entropy(
    task: Task,
    parameters: Sequence[Tensor],
    logits_of: Callable[[Tensor], Tensor],
    order: Callable[[int], Tensor],
    settings: TentSettings,
    make: Callable[[], Adapted],
) -> Curve:
    """Take one step of Adam on the mean entropy of every batch.

    Args:
        logits_of: indices of test images (B,) -> logits (B, C), differentiable in ``parameters``.
        order: ``order(epoch)`` -> the test images in the order in which they come, (N,).
        make: makes the method's result from the current parameters.

    Raises:
        bolt.training.loop.Diverged: if the entropy or a parameter is NaN or infinite.
    """
    recipe = PlainRecipe(settings.epochs, settings.batch_size, settings.learning_rate, schedule="constant")

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        return mean_entropy(logits_of(rows))

    def end(epoch: int, state: object) -> None:
        task.after_epoch(epoch, make)

    how: dict[str, Any] = {"on_epoch_end": end, "precision": task.backbone.precision}
    return fit(parameters, loss_of_rows, order, recipe, task.protocol, task.report, **how)


@register(
    title="Tent",
    palette=26,
    summary="trains the layer norms to minimise the entropy of the predictions",
    paper="https://arxiv.org/abs/2006.10726",
    tracks=frozenset({"tta"}),
    changes_tower=True,
    tower_passes=lambda size, settings: TowerPasses(training=settings.epochs * size),
    training_forwards=2.01,
)
def adapt(task: Task, settings: TentSettings) -> Adapted:
    """Train the layer norms on the unlabelled test images. Raises ``ValueError`` if the task has none."""
    unlabelled, frozen = task.test_images, task.backbone.tower
    trainable = trainable_tower(frozen.copy(trainable=layer_norm_names(frozen.state_dict_open_clip())))
    last: list[Tensor] = []

    def logits_of(rows: Tensor) -> Tensor:
        pixels = unlabelled.pixels(EVALUATION_VIEW, rows)
        logits_BC = task.text_head(trainable.encode(task.backbone.normalise(pixels)))
        last.append(logits_BC.detach().argmax(dim=-1))
        del last[:-_WATCHED_BATCHES]
        return logits_BC

    def order(epoch: int) -> Tensor:
        return unlabelled.order("tent", epoch, unlabelled.size)

    make = partial(adapted, task, trainable)
    curve = minimise_entropy(task, trainable.parameters, logits_of, order, settings, make)
    classes = len(set(torch.cat(last).tolist()))
    return make(details={"mean_entropy": curve[-1]["train_loss"], "classes_in_last_batches": classes})
