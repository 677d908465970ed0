"""MaPLe: learned tokens in the text tower, mapped linearly to tokens of the image tower (Khattak et al., CVPR 2023).

Paper: arXiv:2210.03117. Each of the first J = 9 blocks of the text tower has K = 2 learned tokens P_l
(:mod:`bolt.methods.common.prompts`). A linear map of P_l gives the tokens V_l of the same block in the image tower::

    V_l = P_l A_l^T + b_l,    logits = scale cos(f, t)

P_0 starts at the first words of "a photo of a". The other P_l are drawn from N(0, 0.02^2). A_l and b_l start as
PyTorch's linear layers do, from the same numbers for all l >= 1. P, A and b are trained by cross-entropy: 3,555,072
numbers in ViT-B. The optimiser is SGD with rate 3.5e-3, momentum 0.9 and an L2 penalty of 5e-4 inside the gradient, for
5 epochs of batches of 4. The preset ``cross_dataset`` is the recipe for transfer to other datasets. What differs from
the official code:

- A small support trains for more epochs, until it has ``min_steps`` steps. The official recipe is for 16 images per
  class and at least ten classes, which take 200 steps. There is no official recipe for fewer images.
- The last batch of an epoch is used even if it is smaller than the others. The official code drops it.
- Numbers are float32. The official code rounds the tokens of l = 1, 2, ... to half precision in float32 runs too.

Shape legend: J blocks with tokens, K tokens of a block, W width of the text tower, V width of the image tower.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bolt.clip.tensor_names import DEEP_PROMPTS
from bolt.clip.tower import ImageTower
from bolt.methods.base import register_tower_training
from bolt.methods.common.coop_training import coop_options
from bolt.methods.common.prompts import DeepPromptSettings, TrainedText, prompted_towers
from bolt.seeds import torch_generator
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train


@dataclass(frozen=True)
class MapleSettings(DeepPromptSettings):
    """The tokens and the training recipe; the defaults are the official ones for base to new classes.

    Attributes:
        min_steps: fewest steps of a training. If ``epochs`` epochs have fewer, training goes on for more epochs.
    """

    tokens: int = 2
    epochs: int = 5
    learning_rate: float = 3.5e-3
    min_steps: int = 200

    def epochs_for(self, support_size: int) -> int:
        """Return the number of epochs of a training on ``support_size`` images."""
        return max(self.epochs, math.ceil(self.min_steps / math.ceil(support_size / self.batch_size)))


def initial_maps(task: Task, text_JKW: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps' weights (J, V, W) and biases (J, V), to be trained. They are uniform within 1 / sqrt(W)."""
    depth, _, width = text_JKW.shape
    generator = torch_generator("maple", "maps", task.dataset, task.seed)
    drawn_2VE = torch.rand(2, task.backbone.tower.shape.width, width + 1, generator=generator)  # E = W + 1, bias last
    maps_JVE = ((2 * drawn_2VE - 1) / math.sqrt(width))[[0] + [1] * (depth - 1)].to(text_JKW)
    return maps_JVE[..., :width].clone().requires_grad_(), maps_JVE[..., width].clone().requires_grad_()


def trainable(task: Task, settings: MapleSettings) -> tuple[Trainable, TrainedText]:
    """Return both towers as one trainable model, and the text tower alone. The tokens and the maps are trained.

    Raises the errors of :func:`bolt.methods.common.prompts.prompted_towers`.
    """
    tower, text = prompted_towers(task, settings)
    (text_JKW,) = text.parameters
    weights_JVW, biases_JV = initial_maps(task, text_JKW)

    def image_tokens() -> Tensor:
        return torch.baddbmm(biases_JV[:, None], text_JKW, weights_JVW.mT)

    def encode(images_B3SS: Tensor) -> Tensor:
        return tower.embed_with({DEEP_PROMPTS: image_tokens()}, images_B3SS)

    def current() -> ImageTower:
        return task.backbone.tower.with_prompts(image_tokens()).requires_grad_(False)

    return text.joined(Trainable(encode, [weights_JVW, biases_JV], current)), text


@register_tower_training(
    title="MaPLe",
    palette=55,
    summary="learns tokens of both towers, coupled by linear maps",
    paper="https://arxiv.org/abs/2210.03117",
    tracks=frozenset({"fewshot", "ood"}),
    presets={"cross_dataset": {"depth": 3, "epochs": 2, "learning_rate": 2.6e-3}},
    clips_own_tower=True,
    trains_text=lambda settings: True,
    tower_passes=lambda support_size, settings: settings.passes(settings.epochs_for(support_size), support_size),
    training_forwards=2.0,
)
def adapt(task: Task, settings: MapleSettings) -> Adapted:
    """Train the tokens and the maps on the support."""
    model, _ = trainable(task, settings)
    recipe = settings.recipe(settings.epochs_for(len(task.support)))
    return replace(train(task, model, recipe, **coop_options(recipe)), details={"epochs": recipe.epochs})
