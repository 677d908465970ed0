"""Aerial scenes: what a small piece of land looks like from above. Land and water here, works in `structures`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orchestrator.drawn_world.canvas import (
    SIDE,
    Colour,
    box,
    capsule,
    clouds,
    cover,
    disc,
    frame,
    paint,
    tint,
    tints,
)
from orchestrator.drawn_world.dice import Dice

Painter = Callable[[Dice, int], Tensor]
"""Draws n pictures (n, 3, 32, 32)."""

GRASS: Colour = (0.42, 0.58, 0.28)
WOOD: Colour = (0.13, 0.32, 0.15)
WATER: Colour = (0.13, 0.30, 0.47)
SAND: Colour = (0.84, 0.75, 0.54)
SOIL: Colour = (0.47, 0.34, 0.23)
SNOW: Colour = (0.93, 0.95, 0.98)

LEAVES: tuple[Colour, ...] = ((0.38, 0.60, 0.22), (0.11, 0.32, 0.13), (0.66, 0.38, 0.12), (0.46, 0.42, 0.40))
TURF: tuple[Colour, ...] = ((0.50, 0.72, 0.30), (0.38, 0.54, 0.24), (0.66, 0.56, 0.28), (0.90, 0.91, 0.94))


def ground(dice: Dice, n: int, base: Colour | Tensor, rough: float = 0.05, fine: float = 0.025) -> Tensor:
    """Plain land or water: a colour with blotches and grain."""
    colour = base if isinstance(base, Tensor) else tint(dice, n, base)
    texture = rough * clouds(dice, n, 5) + fine * dice.normal(n, 1, SIDE, SIDE)
    return colour * (1.0 + 2.0 * texture)


def countryside(dice: Dice, n: int) -> Tensor:
    """A neutral background: grass, soil, wood or dry land, so that no scene is told by its background alone."""
    return ground(dice, n, tints(dice, dice.pick(4, n), (GRASS, SOIL, WOOD, (0.65, 0.60, 0.42))))


def crowns(dice: Dice, n: int, cells: int) -> Tensor:
    """Brightness of tree tops: bright bumps with dark gaps, (n, 32, 32)."""
    return clouds(dice, n, cells)[:, 0] * 0.5 + 0.25 * dice.normal(n, SIDE, SIDE)


def forest(dice: Dice, n: int, season: int = 1) -> Tensor:
    """Dense trees; season is an index into words.SEASONS."""
    image = tint(dice, n, LEAVES[season]) * (1.0 + 0.55 * crowns(dice, n, 14))[:, None]
    if season == 3:
        image = paint(image, (clouds(dice, n, 12)[:, 0] > 0.2).float() * 0.7, tint(dice, n, SNOW))
    return image


def meadow(dice: Dice, n: int, season: int = 1) -> Tensor:
    """Open grass with a few bushes; season is an index into words.SEASONS."""
    image = ground(dice, n, tint(dice, n, TURF[season]), rough=0.06)
    bushes = (clouds(dice, n, 9)[:, 0] > 1.25).float()
    return paint(image, bushes, tint(dice, n, LEAVES[season]))


def desert(dice: Dice, n: int) -> Tensor:
    """Sand with dune ripples."""
    x, _ = frame(dice, n)
    ripple = torch.sin(x * dice.uniform(8.0, 16.0, n, 1, 1) + 1.2 * clouds(dice, n, 4)[:, 0])
    return ground(dice, n, SAND) * (1.0 + 0.07 * ripple)[:, None]


def snowfield(dice: Dice, n: int) -> Tensor:
    """Snow with soft blue shadows."""
    return ground(dice, n, SNOW, rough=0.03) * (
        1.0 - 0.08 * clouds(dice, n, 3).clamp(min=0.0) * torch.tensor([1.0, 0.8, 0.4])[:, None, None]
    )


def _furrows(dice: Dice, n: int, base: Colour, depth: float, pitch: tuple[float, float]) -> Tensor:
    """A field worked in rows, with the border of a neighbouring field at a corner."""
    x, y = frame(dice, n, shift=0.2)
    rows = torch.sin(x * dice.uniform(*pitch, n, 1, 1))
    field = ground(dice, n, base) * (1.0 + depth * rows)[:, None]
    edge = dice.uniform(0.55, 1.2, n, 1, 1)
    return paint(field, cover(edge - y), ground(dice, n, tints(dice, dice.pick(2, n), (GRASS, SOIL))))


def wheat(dice: Dice, n: int) -> Tensor:
    """A ripe, golden field with faint rows."""
    return _furrows(dice, n, (0.86, 0.72, 0.34), 0.05, (10.0, 18.0))


def ploughed(dice: Dice, n: int) -> Tensor:
    """Bare soil in deep rows."""
    return _furrows(dice, n, SOIL, 0.28, (10.0, 20.0))


def vegetables(dice: Dice, n: int) -> Tensor:
    """Green rows on soil."""
    return _furrows(dice, n, (0.36, 0.55, 0.22), 0.32, (9.0, 18.0))


def flowers(dice: Dice, n: int) -> Tensor:
    """Broad bands of strong colours."""
    x, _ = frame(dice, n)
    bands = torch.floor(x * dice.uniform(1.6, 3.0, n, 1, 1) + dice.uniform(0.0, 5.0, n, 1, 1)).long() % 5
    palette = torch.tensor(
        [(0.88, 0.25, 0.40), (0.95, 0.80, 0.20), (0.70, 0.35, 0.75), (0.95, 0.55, 0.60), (0.35, 0.58, 0.25)]
    )
    return palette[bands].permute(0, 3, 1, 2) * (1.0 + 0.05 * dice.normal(n, 1, SIDE, SIDE))


def orchard(dice: Dice, n: int) -> Tensor:
    """Trees in a square grid on grass or soil."""
    x, y = frame(dice, n)
    pitch = dice.uniform(0.30, 0.46, n, 1, 1)
    u, v = (torch.remainder(axis / pitch, 1.0) * pitch - pitch / 2 for axis in (x, y))
    image = ground(dice, n, tints(dice, dice.pick(2, n), (GRASS, (0.62, 0.52, 0.36))))
    return paint(image, cover(disc(u, v, 0.34 * pitch)), tint(dice, n, WOOD))


def irrigation(dice: Dice, n: int) -> Tensor:
    """Round green fields on dry land."""
    x, y = frame(dice, n, shift=0.35)
    image = ground(dice, n, tints(dice, dice.pick(2, n), (SAND, (0.62, 0.50, 0.36))))
    radius = dice.uniform(0.5, 0.8, n, 1, 1)
    for side in (0.0, 2.1):
        green = ground(dice, n, tints(dice, dice.pick(2, n), ((0.25, 0.48, 0.18), (0.48, 0.60, 0.25))))
        image = paint(image, cover(disc(x - side * radius, y, radius)), green)
    return image


def waves(dice: Dice, n: int) -> Tensor:
    """Water with a light swell."""
    x, _ = frame(dice, n)
    swell = torch.sin(x * dice.uniform(10.0, 22.0, n, 1, 1) + 1.5 * clouds(dice, n, 5)[:, 0])
    return ground(dice, n, WATER) * (1.0 + dice.uniform(0.02, 0.12, n, 1, 1) * swell)[:, None]


def sea(dice: Dice, n: int) -> Tensor:
    """Open water with white crests."""
    return paint(waves(dice, n), (clouds(dice, n, 15)[:, 0] > 1.7).float() * 0.7, tint(dice, n, SNOW))


def lake(dice: Dice, n: int) -> Tensor:
    """A closed, uneven sheet of water inside land."""
    x, y = frame(dice, n, shift=0.2)
    edge = disc(x, y * dice.uniform(1.0, 1.6, n, 1, 1), dice.uniform(0.45, 0.75, n, 1, 1))
    return paint(countryside(dice, n), cover(edge + 0.12 * clouds(dice, n, 4)[:, 0]), ground(dice, n, WATER, 0.02))


def island(dice: Dice, n: int) -> Tensor:
    """Land with a sandy rim inside water."""
    x, y = frame(dice, n, shift=0.2)
    edge = disc(x, y * dice.uniform(1.0, 1.6, n, 1, 1), dice.uniform(0.45, 0.7, n, 1, 1))
    edge = edge + 0.12 * clouds(dice, n, 4)[:, 0]
    image = paint(waves(dice, n), cover(edge - 0.1), tint(dice, n, SAND))
    return paint(image, cover(edge), ground(dice, n, tints(dice, dice.pick(2, n), (WOOD, GRASS))))


def bends(dice: Dice, n: int, strength: float) -> tuple[Tensor, Tensor]:
    """Coordinates whose vertical axis meanders: a line y = 0 in them is a winding one."""
    x, y = frame(dice, n, shift=0.2)
    wave = torch.sin(x * dice.uniform(1.5, 4.0, n, 1, 1) + dice.uniform(0.0, 2 * math.pi, n, 1, 1))
    return x, y + strength * dice.uniform(0.3, 1.0, n, 1, 1) * wave


def river(dice: Dice, n: int) -> Tensor:
    """A winding band of water from edge to edge."""
    _, y = bends(dice, n, 0.4)
    band = y.abs() - dice.uniform(0.12, 0.3, n, 1, 1) + 0.03 * clouds(dice, n, 6)[:, 0]
    return paint(countryside(dice, n), cover(band), ground(dice, n, WATER, 0.02))


def beach(dice: Dice, n: int) -> Tensor:
    """Water, a band of foam, sand, and land behind."""
    _, y = bends(dice, n, 0.15)
    image = paint(waves(dice, n), cover(-0.06 - y), tint(dice, n, SNOW))
    image = paint(image, cover(-y), ground(dice, n, SAND))
    return paint(image, cover(dice.uniform(0.4, 1.2, n, 1, 1) - y), countryside(dice, n))


def pier_and_boats(dice: Dice, n: int) -> Tensor:
    """A quay, a jetty, and boats beside it."""
    x, y = frame(dice, n, shift=0.15)
    image = paint(waves(dice, n), cover(box(x, y + 1.1, 3.0, 0.4)), tint(dice, n, (0.62, 0.60, 0.57)))
    image = paint(image, cover(box(x, y, 0.06, 0.85)), tint(dice, n, (0.58, 0.50, 0.42)))
    for side in (-1.0, 1.0):
        for place in (-0.45, -0.1, 0.25, 0.6):
            moored = dice.chance(0.8, n, 1, 1)
            reach = side * dice.uniform(0.35, 0.6, n, 1, 1)
            level = place + dice.uniform(-0.06, 0.06, n, 1, 1)
            hull = capsule(x, y, (side * torch.full_like(reach, 0.16), level), (reach, level), 0.085, 0.03)
            hulls = tints(dice, dice.pick(3, n), ((0.95, 0.95, 0.95), (0.85, 0.3, 0.25), (0.9, 0.85, 0.7)))
            image = paint(image, cover(hull) * moored, hulls)
    return image


def wooded(dice: Dice, image: Tensor, amount: float) -> Tensor:
    """Scatter single trees over a picture; `amount` is the threshold of the cloud that places them."""
    trees = (clouds(dice, len(image), 11)[:, 0] > amount).float()
    return paint(image, trees, tint(dice, len(image), WOOD))
