"""Plain numbers that say how pictures are set and taken. No tensors here, so that the registry imports fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Hand:
    """How steadily characters are set; pairs are ranges of a uniform draw."""

    tilt: tuple[float, float] = (-0.25, 0.25)
    """Rotation in radians."""
    size: tuple[float, float] = (0.75, 1.15)
    """Height relative to a comfortable fit."""
    shift: float = 0.16
    """Largest offset from the centre, in half picture widths."""
    clutter: tuple[float, float] = (0.0, 0.18)
    """Strength of the low-frequency blotches behind and over the character."""
    noise: tuple[float, float] = (0.0, 0.10)
    """Standard deviation of the pixel noise."""


Bands = Literal["colour", "infrared", "grey"]

Rendition = Literal["photo", "sketch", "poster", "cloudy"]
"""A scene as it is, in pencil, printed in other inks, or half hidden."""


@dataclass(frozen=True)
class Sensor:
    """What an aerial picture was taken with."""

    bands: Bands = "colour"
    pixels: int = 32
    """Pixels across the scene before it is scaled to the picture's size."""
