"""Aerial scenes of land and water. Scenes with buildings and roads are in ``structures``."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orchestrator.drawn_world.pictures.canvas import SIDE, box, capsule, clouds, cover, disc, frame, paint, tint, tints
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.words import Colour

Painter = Callable[[KeyedRandom, int], Tensor]
"""A function that draws n pictures of a scene, (n, 3, 32, 32)."""

GRASS: Colour = (0.42, 0.58, 0.28)
WOOD: Colour = (0.13, 0.32, 0.15)
WATER: Colour = (0.13, 0.30, 0.47)
SAND: Colour = (0.84, 0.75, 0.54)
SOIL: Colour = (0.47, 0.34, 0.23)
SNOW: Colour = (0.93, 0.95, 0.98)

LEAVES: tuple[Colour, ...] = ((0.38, 0.60, 0.22), (0.11, 0.32, 0.13), (0.66, 0.38, 0.12), (0.46, 0.42, 0.40))
TURF: tuple[Colour, ...] = ((0.50, 0.72, 0.30), (0.38, 0.54, 0.24), (0.66, 0.56, 0.28), (0.90, 0.91, 0.94))


def ground(rng: KeyedRandom, n: int, *bases: Colour, rough: float = 0.05) -> Tensor:
    """Draw plain land or water in one of the colours, with blotches and grain."""
    colour = tint(rng, n, bases[0]) if len(bases) == 1 else tints(rng, rng.pick(len(bases), n), bases)
    texture = rough * clouds(rng, n, 5) + 0.025 * rng.normal(n, 1, SIDE, SIDE)
    return colour * (1.0 + 2.0 * texture)


def countryside(rng: KeyedRandom, n: int) -> Tensor:
    """Draw grass, soil, wood or dry land at random, so that the background alone does not reveal the scene."""
    return ground(rng, n, GRASS, SOIL, WOOD, (0.65, 0.60, 0.42))


def forest(rng: KeyedRandom, n: int, season: int = 1) -> Tensor:
    """Draw dense trees; season is an index into words.SEASONS."""
    leaves = tint(rng, n, LEAVES[season])
    crowns = clouds(rng, n, 14)[:, 0] * 0.5 + 0.25 * rng.normal(n, SIDE, SIDE)  # bright bumps with dark gaps
    image = leaves * (1.0 + 0.55 * crowns)[:, None]
    if season == 3:
        image = paint(image, (clouds(rng, n, 12)[:, 0] > 0.2).float() * 0.7, tint(rng, n, SNOW))
    return image


def meadow(rng: KeyedRandom, n: int, season: int = 1) -> Tensor:
    """Draw open grass with a few bushes; season is an index into words.SEASONS."""
    image = ground(rng, n, TURF[season], rough=0.06)
    bushes = (clouds(rng, n, 9)[:, 0] > 1.25).float()
    return paint(image, bushes, tint(rng, n, LEAVES[season]))


def desert(rng: KeyedRandom, n: int) -> Tensor:
    """Draw sand with dune ripples."""
    x, _ = frame(rng, n)
    ripple = torch.sin(x * rng.uniform(8.0, 16.0, n, 1, 1) + 1.2 * clouds(rng, n, 4)[:, 0])
    return ground(rng, n, SAND) * (1.0 + 0.07 * ripple)[:, None]


def snowfield(rng: KeyedRandom, n: int) -> Tensor:
    """Draw snow with soft blue shadows."""
    return ground(rng, n, SNOW, rough=0.03) * (
        1.0 - 0.08 * clouds(rng, n, 3).clamp(min=0.0) * torch.tensor([1.0, 0.8, 0.4])[:, None, None]
    )


def _furrows(rng: KeyedRandom, n: int, base: Colour, depth: float, pitch: tuple[float, float]) -> Tensor:
    """Draw a field worked in rows, with the border of a neighbouring field at a corner."""
    x, y = frame(rng, n, shift=0.2)
    rows = torch.sin(x * rng.uniform(*pitch, n, 1, 1))
    field = ground(rng, n, base) * (1.0 + depth * rows)[:, None]
    edge = rng.uniform(0.55, 1.2, n, 1, 1)
    return paint(field, cover(edge - y), ground(rng, n, GRASS, SOIL))


def wheat_field(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a ripe, golden field with faint rows."""
    return _furrows(rng, n, (0.86, 0.72, 0.34), 0.05, (10.0, 18.0))


def ploughed_field(rng: KeyedRandom, n: int) -> Tensor:
    """Draw bare soil in deep rows."""
    return _furrows(rng, n, SOIL, 0.28, (10.0, 20.0))


def vegetable_field(rng: KeyedRandom, n: int) -> Tensor:
    """Draw green rows on soil."""
    return _furrows(rng, n, (0.36, 0.55, 0.22), 0.32, (9.0, 18.0))


def flower_field(rng: KeyedRandom, n: int) -> Tensor:
    """Draw broad bands of strong colours."""
    x, _ = frame(rng, n)
    bands = torch.floor(x * rng.uniform(1.6, 3.0, n, 1, 1) + rng.uniform(0.0, 5.0, n, 1, 1)).long() % 5
    palette = torch.tensor(
        [(0.88, 0.25, 0.40), (0.95, 0.80, 0.20), (0.70, 0.35, 0.75), (0.95, 0.55, 0.60), (0.35, 0.58, 0.25)]
    )
    return palette[bands].permute(0, 3, 1, 2) * (1.0 + 0.05 * rng.normal(n, 1, SIDE, SIDE))


def orchard(rng: KeyedRandom, n: int) -> Tensor:
    """Draw trees in a square grid on grass or soil."""
    x, y = frame(rng, n)
    pitch = rng.uniform(0.30, 0.46, n, 1, 1)
    u, v = (torch.remainder(axis / pitch, 1.0) * pitch - pitch / 2 for axis in (x, y))
    image = ground(rng, n, GRASS, (0.62, 0.52, 0.36))
    return paint(image, cover(disc(u, v, 0.34 * pitch)), tint(rng, n, WOOD))


def irrigation_circle(rng: KeyedRandom, n: int) -> Tensor:
    """Draw round green fields on dry land."""
    x, y = frame(rng, n, shift=0.35)
    image = ground(rng, n, SAND, (0.62, 0.50, 0.36))
    radius = rng.uniform(0.5, 0.8, n, 1, 1)
    for side in (0.0, 2.1):
        green = ground(rng, n, (0.25, 0.48, 0.18), (0.48, 0.60, 0.25))
        image = paint(image, cover(disc(x - side * radius, y, radius)), green)
    return image


def waves(rng: KeyedRandom, n: int) -> Tensor:
    """Draw water with a light swell."""
    x, _ = frame(rng, n)
    swell = torch.sin(x * rng.uniform(10.0, 22.0, n, 1, 1) + 1.5 * clouds(rng, n, 5)[:, 0])
    return ground(rng, n, WATER) * (1.0 + rng.uniform(0.02, 0.12, n, 1, 1) * swell)[:, None]


def sea(rng: KeyedRandom, n: int) -> Tensor:
    """Draw open water with white crests."""
    return paint(waves(rng, n), (clouds(rng, n, 15)[:, 0] > 1.7).float() * 0.7, tint(rng, n, SNOW))


def lake(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a closed, uneven sheet of water inside land."""
    x, y = frame(rng, n, shift=0.2)
    edge = disc(x, y * rng.uniform(1.0, 1.6, n, 1, 1), rng.uniform(0.45, 0.75, n, 1, 1))
    return paint(countryside(rng, n), cover(edge + 0.12 * clouds(rng, n, 4)[:, 0]), ground(rng, n, WATER, rough=0.02))


def island(rng: KeyedRandom, n: int) -> Tensor:
    """Draw land with a sandy rim inside water."""
    x, y = frame(rng, n, shift=0.2)
    edge = disc(x, y * rng.uniform(1.0, 1.6, n, 1, 1), rng.uniform(0.45, 0.7, n, 1, 1))
    edge = edge + 0.12 * clouds(rng, n, 4)[:, 0]
    image = paint(waves(rng, n), cover(edge - 0.1), tint(rng, n, SAND))
    return paint(image, cover(edge), ground(rng, n, WOOD, GRASS))


def bends(rng: KeyedRandom, n: int, strength: float) -> tuple[Tensor, Tensor]:
    """Return coordinates whose vertical axis meanders: the line y = 0 winds through the picture."""
    x, y = frame(rng, n, shift=0.2)
    wave = torch.sin(x * rng.uniform(1.5, 4.0, n, 1, 1) + rng.uniform(0.0, 2 * math.pi, n, 1, 1))
    return x, y + strength * rng.uniform(0.3, 1.0, n, 1, 1) * wave


def river(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a winding band of water from edge to edge."""
    _, y = bends(rng, n, 0.4)
    band = y.abs() - rng.uniform(0.12, 0.3, n, 1, 1) + 0.03 * clouds(rng, n, 6)[:, 0]
    return paint(countryside(rng, n), cover(band), ground(rng, n, WATER, rough=0.02))


def beach(rng: KeyedRandom, n: int) -> Tensor:
    """Draw water, a band of foam, sand, and land behind."""
    _, y = bends(rng, n, 0.15)
    image = paint(waves(rng, n), cover(-0.06 - y), tint(rng, n, SNOW))
    image = paint(image, cover(-y), ground(rng, n, SAND))
    return paint(image, cover(rng.uniform(0.4, 1.2, n, 1, 1) - y), countryside(rng, n))


def harbour(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a quay and a jetty with boats."""
    x, y = frame(rng, n, shift=0.15)
    image = paint(waves(rng, n), cover(box(x, y + 1.1, 3.0, 0.4)), tint(rng, n, (0.62, 0.60, 0.57)))
    image = paint(image, cover(box(x, y, 0.06, 0.85)), tint(rng, n, (0.58, 0.50, 0.42)))
    for side in (-1.0, 1.0):
        for place in (-0.45, -0.1, 0.25, 0.6):
            moored = rng.chance(0.8, n, 1, 1)
            reach = side * rng.uniform(0.35, 0.6, n, 1, 1)
            level = place + rng.uniform(-0.06, 0.06, n, 1, 1)
            hull = capsule(x, y, (side * torch.full_like(reach, 0.16), level), (reach, level), 0.085, 0.03)
            hulls = tints(rng, rng.pick(3, n), ((0.95, 0.95, 0.95), (0.85, 0.3, 0.25), (0.9, 0.85, 0.7)))
            image = paint(image, cover(hull) * moored, hulls)
    return image


def wooded(rng: KeyedRandom, image: Tensor, amount: float) -> Tensor:
    """Scatter trees over pictures, wherever a random field exceeds ``amount``: a larger amount gives fewer trees."""
    trees = (clouds(rng, len(image), 11)[:, 0] > amount).float()
    return paint(image, trees, tint(rng, len(image), WOOD))
