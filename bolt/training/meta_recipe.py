"""The hyperparameters of meta-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Variant = Literal["maml", "first_order", "reptile"]


@dataclass(frozen=True)
class MetaRecipe:
    """The hyperparameters of a meta-learned start; the defaults are the BOLT authors' for MAML.

    Attributes:
        variant: ``maml`` differentiates through the inner steps; ``first_order`` takes the gradient after them;
            ``reptile`` moves towards the parameters after them.
        steps: the number of outer updates.
        tasks_per_step: datasets per outer update; all of them if there are fewer.
        support, query: images of a dataset's training split for the inner steps, and for the outer loss.
        inner_steps, inner_rate: number and learning rate of the plain gradient steps on the support; they train the
            head too.
        outer_rate: learning rate of AdamW without weight decay; for ``reptile``, the fraction of the way to the
            parameters after the inner steps.
        clip_norm: largest global norm of the outer gradient; 0 switches clipping off. ``reptile`` never clips.
    """

    variant: Variant = "maml"
    steps: int = 2000
    tasks_per_step: int = 4
    support: int = 32
    query: int = 32
    inner_steps: int = 1
    inner_rate: float = 1e-4
    outer_rate: float = 5e-5
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant is one of {', '.join(get_args(Variant))}, not {self.variant!r}")
        for name in ("steps", "tasks_per_step", "support", "query", "inner_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("inner_rate", "outer_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.clip_norm >= 0:
            raise ValueError(f"clip_norm must not be negative: it is {self.clip_norm}")
