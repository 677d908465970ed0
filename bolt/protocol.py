"""A protocol: the named set of switches that say how a measurement is made.

``STRICT`` is the default and the fair way. ``PUBLISHED`` is what the authors' code does where that differs from
their paper; each switch is one such difference, so that any of them can be turned alone to see what it explains.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal


@dataclass(frozen=True)
class Protocol:
    """How a cell is measured. Everything in here can change the number, so all of it is part of a cell's identity.

    Attributes:
        name: ``strict``, ``published``, or either with ``+changes`` when a grid turned single switches.
        sigma_sign: ``free`` trains signed coefficients as in the paper; ``relu`` clamps them at zero in the
            forward pass as the authors' code does, so that entries that start negative never move.
        schedule_offset: the authors call the learning-rate schedule after the optimiser's step: update 0 uses the
            full rate and update s the rate of step s - 1.
        epoch_selection: ``last`` keeps the final coefficients (paper, tables); ``best_train_loss`` restores the
            epoch with the lowest mean training loss (the released code).
        alpha_views: images the alpha sweep scores: ``plain`` un-augmented support, or one ``augmented`` view of it.
        short_classes: a class with fewer than k training images: ``refuse`` the cell, or ``take_all`` there are.
    """

    name: str = "strict"
    sigma_sign: Literal["free", "relu"] = "free"
    schedule_offset: bool = False
    epoch_selection: Literal["last", "best_train_loss"] = "last"
    alpha_views: Literal["plain", "augmented"] = "plain"
    short_classes: Literal["refuse", "take_all"] = "refuse"

    def with_switches(self, **switches: object) -> Protocol:
        """The protocol with single switches turned; its name says so. Unknown switches raise ``TypeError``."""
        changed = {key: value for key, value in switches.items() if getattr(self, key, None) != value}
        if not changed and all(hasattr(self, key) for key in switches):
            return self
        suffix = ",".join(f"{key}={value}" for key, value in sorted(changed.items()))
        return replace(self, name=f"{self.name}+{suffix}", **changed)  # type: ignore[arg-type]


STRICT = Protocol()
PUBLISHED = Protocol(
    name="published",
    sigma_sign="relu",
    schedule_offset=True,
    epoch_selection="last",
    alpha_views="augmented",
    short_classes="take_all",
)
PROTOCOLS = {protocol.name: protocol for protocol in (STRICT, PUBLISHED)}
SWITCHES = tuple(field.name for field in fields(Protocol) if field.name != "name")
