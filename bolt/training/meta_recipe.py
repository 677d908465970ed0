"""The hyperparameters of meta-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bolt.util.ranges import AtLeast1, Checked, NotNegative, Positive

Variant = Literal["maml", "first_order", "reptile"]


@dataclass(frozen=True)
class MetaRecipe(Checked):
    """The hyperparameters of a meta-learned start; the defaults are the BOLT authors' for MAML.

    Attributes:
        variant: ``maml`` differentiates through the inner steps; ``first_order`` takes the gradient after the inner
            steps; ``reptile`` moves towards the parameters after the inner steps.
        steps: the number of outer updates.
        tasks_per_step: number of datasets per outer update; all datasets if there are fewer.
        support, query: number of training images of a dataset that the inner steps use (``support``), and that the
            outer loss uses (``query``).
        inner_steps, inner_rate: number and learning rate of the plain gradient steps on the support. These steps train
            the head too.
        outer_rate: learning rate of AdamW without weight decay; for ``reptile``, the fraction of the way to the
            parameters after the inner steps.
        clip_norm: largest global norm of the outer gradient; 0 switches clipping off. ``reptile`` never clips.
    """

    variant: Variant = "maml"
    steps: AtLeast1 = 2000
    tasks_per_step: AtLeast1 = 4
    support: AtLeast1 = 32
    query: AtLeast1 = 32
    inner_steps: AtLeast1 = 1
    inner_rate: Positive = 1e-4
    outer_rate: Positive = 5e-5
    clip_norm: NotNegative = 1.0
