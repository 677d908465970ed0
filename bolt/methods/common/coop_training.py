"""Optimisers and learning rates of CoOp's training code. CLIP-Adapter, TaskRes and CLAP are built on that code.

That code is Dassl (github.com/KaiyangZhou/Dassl.pytorch) with the configuration of CoOp. Two of its defaults are easily
missed, because the papers do not name them:

- Weight decay is an L2 penalty of 5e-4 inside the gradient, for Adam too. CLAP sets the weight decay to 0.
- The learning rate is constant within an epoch. In a training of E epochs, the rate is 1e-5 in epoch 0, and
  ``rate / 2 (1 + cos(pi (e - 1) / E))`` in a later epoch e, so it never falls to zero. With E = 1, almost nothing is
  learnt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bolt.methods.base import TowerPasses
from bolt.training.loop import PlainRecipe, Schedule, TrainingRecipe, fused_on_gpu
from bolt.training.optimisers import SGD, Adam
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Positive

WARMUP_RATE = 1e-5
"""The learning rate of the first epoch."""
_MOMENTUM = 0.9


def coop_schedule(recipe: TrainingRecipe) -> Schedule:
    """Return the learning rate as a function of the step.

    The rate is constant within an epoch. It is 1e-5 in the first epoch, and follows a cosine over the later epochs.
    """

    def rate(step: int, steps_per_epoch: int) -> float:
        epoch = step // steps_per_epoch
        if epoch == 0:
            return WARMUP_RATE
        return 0.5 * recipe.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / recipe.epochs))

    return rate


def sgd(groups: list[dict[str, Any]], recipe: TrainingRecipe) -> torch.optim.Optimizer:
    """Return stochastic gradient descent with momentum 0.9; the recipe's weight decay is an L2 penalty."""
    rate, decay, fused = recipe.learning_rate, recipe.weight_decay, fused_on_gpu(groups[0]["params"][0].device)
    return SGD(groups, lr=rate, momentum=_MOMENTUM, weight_decay=decay, fused=fused)


def coop_options(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the options of :func:`bolt.training.loop.fit` for CoOp's optimiser and schedule."""
    return {"make_optimiser": sgd, "schedule": coop_schedule(recipe)}


def adam(groups: list[dict[str, Any]], recipe: TrainingRecipe) -> torch.optim.Optimizer:
    """Return Adam with its usual betas; the recipe's weight decay is an L2 penalty inside the gradient."""
    rate, decay, fused = recipe.learning_rate, recipe.weight_decay, fused_on_gpu(groups[0]["params"][0].device)
    return Adam(groups, lr=rate, eps=recipe.epsilon, weight_decay=decay, fused=fused)


@dataclass(frozen=True)
class CoopTrainingSettings(Checked):
    """The hyperparameters of a training with CoOp's code.

    Attributes:
        epochs: passes over the support; with ``None``, the method computes them from the number of images per class.
        batch_size, learning_rate: images per step, and the highest learning rate of the schedule.
        weight_decay: factor of an L2 penalty, which the optimiser adds to the gradient.
    """

    epochs: AtLeast1 | None = None
    batch_size: AtLeast1 = 32
    learning_rate: Positive = 2e-3
    weight_decay: NotNegative = 5e-4

    def epochs_of(self, labels_N: Tensor, by_shots: Sequence[tuple[float, int]]) -> int:
        """Return ``epochs`` or, without it, the default for a support with the labels ``labels_N``.

        Args:
            by_shots: ascending pairs (largest number of images per class, default number of epochs).
        """
        shots = int(labels_N.bincount().max())
        return self.epochs or next(epochs for most, epochs in by_shots if shots <= most)

    def recipe(self, epochs: int) -> TrainingRecipe:
        """Return the recipe of a training over ``epochs`` epochs."""
        return PlainRecipe(epochs, self.batch_size, self.learning_rate, self.weight_decay)

    def passes(self, epochs: int, images: int) -> TowerPasses:
        """Return how often the towers are run to train for ``epochs`` epochs on ``images`` images."""
        return TowerPasses(training=epochs * images, text_training=epochs * math.ceil(images / self.batch_size))
