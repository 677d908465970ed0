"""Drawing functions for whole batches of images: shapes as signed distances, clouds and colours.

Conventions: images are float32 (n, 3, 32, 32) in [0, 1]; masks and distances are (n, 32, 32); coordinates run
from -1 (left, top) to 1 (right, bottom); one number per image has the shape (n, 1, 1).
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.words import Colour

SIDE = 32
"""Height and width of every drawn picture, in pixels."""

PIXEL = 2.0 / SIDE
"""Width of one pixel in coordinates."""

Length: TypeAlias = Tensor | float
Point = tuple[Tensor, Tensor]


def grid() -> tuple[Tensor, Tensor]:
    """Return coordinates x and y of the pixel centres, each (1, 32, 32)."""
    axis = (torch.arange(SIDE) + 0.5) * PIXEL - 1.0
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return x[None], y[None]


def frame(
    rng: KeyedRandom, n: int, turn: float = math.pi, shift: float = 0.0, zoom: tuple[float, float] = (1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Return the coordinates x and y of the pixels, each (n, 32, 32), randomly turned (radians), shifted and zoomed."""
    x, y = grid()
    angle = rng.uniform(-turn, turn, n, 1, 1)
    scale = rng.uniform(*zoom, n, 1, 1)
    x, y = x - rng.uniform(-shift, shift, n, 1, 1), y - rng.uniform(-shift, shift, n, 1, 1)
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    return cos * x + sin * y, cos * y - sin * x


def cover(distance: Tensor, softness: float = PIXEL) -> Tensor:
    """Return the share of each pixel that lies in a shape, from the signed distance to it (negative inside)."""
    return (0.5 - distance / softness).clamp(0.0, 1.0)


def disc(x: Tensor, y: Tensor, radius: Length) -> Tensor:
    """Return the distance to a disc around the origin."""
    return torch.sqrt(x * x + y * y + 1e-9) - radius


def box(x: Tensor, y: Tensor, half_width: Length, half_height: Length) -> Tensor:
    """Return the distance to a box around the origin. It is the Chebyshev distance, so that corners stay sharp."""
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def capsule(x: Tensor, y: Tensor, start: Point, end: Point, radius: Length, end_radius: Length | None = None) -> Tensor:
    """Return the distance to a line with round ends, whose radius changes from ``radius`` to ``end_radius``.

    Tensors other than ``x`` and ``y`` are (n, 1, 1).
    """
    (ax, ay), (bx, by) = start, end
    dx, dy = bx - ax, by - ay
    along = (((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy + 1e-6)).clamp(0.0, 1.0)
    width = radius if end_radius is None else radius + (end_radius - radius) * along
    return torch.sqrt((x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2 + 1e-9) - width


def clouds(rng: KeyedRandom, n: int, cells: int, channels: int = 1) -> Tensor:
    """Draw smooth noise with about `cells` bumps per side, (n, channels, 32, 32).

    The noise has standard deviation 1 before it is smoothed.
    """
    coarse = rng.normal(n, channels, cells + 1, cells + 1)
    return functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)


def tint(rng: KeyedRandom, n: int, base: Colour, spread: float = 0.05) -> Tensor:
    """Return the colour `base` for each image, with a small variation of brightness and hue, (n, 3, 1, 1)."""
    return tints(rng, torch.zeros(n, dtype=torch.int64), (base,), spread)


def tints(rng: KeyedRandom, choice: Tensor, bases: Sequence[Colour], spread: float = 0.05) -> Tensor:
    """Return the colour ``bases[choice]`` for each image, varied as in `tint`: ``choice`` (n,) -> (n, 3, 1, 1)."""
    colour = torch.tensor(bases)[choice][:, :, None, None]
    n = len(choice)
    light = rng.uniform(1.0 - 2.0 * spread, 1.0 + 2.0 * spread, n, 1, 1, 1)
    return (colour * light + rng.uniform(-spread, spread, n, 3, 1, 1)).clamp(0.0, 1.0)


def paint(image: Tensor, mask: Tensor, colour: Tensor) -> Tensor:
    """Blend a colour (n, 3, 1, 1) or a picture (n, 3, 32, 32) into the image, by the mask (n, 32, 32) from 0 to 1."""
    return image + mask[:, None] * (colour - image)


def grain(rng: KeyedRandom, image: Tensor, strength: Tensor | float) -> Tensor:
    """Add white noise, which is equal in all three channels."""
    return image + strength * rng.normal(len(image), 1, SIDE, SIDE)


def to_bytes(image: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Convert float pictures (n, 3, 32, 32) to bytes (n, 32, 32, 3), the form of decoded images."""
    array = (image.clamp(0.0, 1.0) * 255.0 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return np.asarray(array, dtype=np.uint8)
