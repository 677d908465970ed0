"""The settings of meta-learning: how a start is learned on other datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Variant = Literal["maml", "first_order", "reptile"]


@dataclass(frozen=True)
class MetaRecipe:
    """How a start is meta-learned; the defaults are the authors' for MAML.

    Attributes:
        variant: ``maml`` differentiates through the inner steps, ``first_order`` takes their end's gradient,
            ``reptile`` moves towards their end.
        steps: outer updates.
        tasks_per_step: datasets an outer update learns from, all of them if there are fewer.
        support, query: images of a dataset's training split for the inner steps, and for the outer loss.
        inner_steps, inner_rate: plain gradient steps on a dataset's support, head included.
        outer_rate: of AdamW without decay; for ``reptile`` the share of the way that is gone.
        clip_norm: largest global norm of the outer gradient, 0 for any; ``reptile`` never clips.
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
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("inner_rate", "outer_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is positive, not {getattr(self, name)}")
        if not self.clip_norm >= 0:
            raise ValueError(f"clip_norm is not negative, unlike {self.clip_norm}")
