"""Learned tokens of several blocks in both towers (deep prompts), as in MaPLe and PromptSRC.

In the text tower the tokens follow the start token and replace the first words of the prompt. In the image tower the
tokens follow the patches and have no position embedding; the layer norm before the blocks is applied to them. Each of
the first ``depth`` blocks has its own tokens, which replace the previous block's outputs at the same positions.

Shape legend: J blocks with tokens, K tokens of a block, W width of the text tower.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.methods.common.coop_training import CoopTrainingSettings
from bolt.methods.common.prompts import word_embeddings
from bolt.methods.common.trained_text import TrainedText
from bolt.seeds import torch_generator
from bolt.task.task import Task
from bolt.util.ranges import AtLeast1

_DEVIATION = 0.02


@dataclass(frozen=True)
class DeepPromptSettings(CoopTrainingSettings):
    """The tokens and the training recipe.

    Attributes:
        depth: how many blocks of each tower have tokens. If one of the towers has fewer blocks, its number of blocks
            is used for both towers.
        tokens: tokens of a block in each tower.
        initial_words: words before the class name. The text tokens of the first block start as the embeddings of these
            words.
        epochs, batch_size, learning_rate, weight_decay: the settings of SGD with momentum. The weight decay is the
            factor of an L2 penalty.
    """

    depth: AtLeast1 = 9
    tokens: AtLeast1 = 4
    initial_words: str = "a photo of a"
    epochs: int = 20
    batch_size: int = 4
    learning_rate: float = 2.5e-3


def drawn_tokens(task: Task, *shape: int, tower: str) -> Tensor:
    """Draw tokens of a tower from N(0, 0.02^2). The task's dataset and seed fix the draw."""
    generator = torch_generator("deep prompts", tower, task.dataset, task.seed)
    return _DEVIATION * torch.randn(shape, generator=generator).to(task.backbone.device)


def prompted_towers(task: Task, settings: DeepPromptSettings) -> tuple[ImageTower, TrainedText]:
    """Return the image tower and the text tower, both with tokens to train.

    The tokens of the text tower's first block start as the embeddings of words. All other tokens are drawn at random.

    Raises ``ValueError`` if ``initial_words`` has fewer tokens than ``tokens``, and ``UnsupportedTower`` for a tower
    that is not CLIP's.
    """
    image, text = task.backbone.tower, task.backbone.text_tower
    depth = min(settings.depth, image.shape.layers, text.shape.layers)
    tower = image.with_prompts(drawn_tokens(task, depth, settings.tokens, image.shape.width, tower="image"))
    first_KW = word_embeddings(task.backbone, settings.initial_words)[: settings.tokens]
    if len(first_KW) < settings.tokens:
        raise ValueError(f"initial_words has {len(first_KW)} tokens, but tokens asks for {settings.tokens}")
    drawn_JKW = drawn_tokens(task, depth - 1, *first_KW.shape, tower="text").to(first_KW)
    prompted = text.with_prompts(torch.cat([first_KW[None], drawn_JKW]))
    return tower, TrainedText(task, prompted, f"{settings.initial_words} {{}}.")
