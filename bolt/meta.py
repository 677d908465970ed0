"""Meta-learning an initialisation of the image tower on other datasets: MAML and Reptile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MetaRecipe:
    """How a start is meta-learned; the defaults are the authors' for MAML.

    Attributes:
        variant: ``maml`` differentiates through the inner steps, ``first_order`` takes their end's gradient,
            ``reptile`` moves towards their end.
        steps: outer updates.
        tasks_per_step: datasets an outer update learns from.
        support, query: images of a dataset's training split for the inner steps, and for the outer loss.
        inner_steps, inner_rate: plain gradient steps on a dataset's support, head included.
        outer_rate: of AdamW; for ``reptile`` the share of the way that is gone.
        clip_norm: largest global norm of the outer gradient.
    """

    variant: Literal["maml", "first_order", "reptile"] = "maml"
    steps: int = 2000
    tasks_per_step: int = 4
    support: int = 32
    query: int = 32
    inner_steps: int = 1
    inner_rate: float = 1e-4
    outer_rate: float = 5e-5
    clip_norm: float = 1.0
