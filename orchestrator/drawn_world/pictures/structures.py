"""Aerial scenes with structures: roads, rails, roofs and tanks."""

import torch
from torch import Tensor

from orchestrator.drawn_world.pictures.aerial import GRASS, WATER, bends, countryside, ground, waves, wooded
from orchestrator.drawn_world.pictures.canvas import box, cover, disc, frame, paint, tint, tints
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.words import ROOFS, Colour

ASPHALT: Colour = (0.36, 0.36, 0.38)
CONCRETE: Colour = (0.66, 0.65, 0.62)
WHITE: Colour = (0.95, 0.95, 0.95)


def _dashes(x: Tensor, pitch: float, share: float) -> Tensor:
    """Return 1 inside the dashes along x, and 0 between them."""
    return (torch.remainder(x / pitch, 1.0) < share).float()


def _road(image: Tensor, rng: KeyedRandom, x: Tensor, y: Tensor, half_width: Tensor) -> Tensor:
    n = len(image)
    image = paint(image, cover(y.abs() - half_width), tint(rng, n, ASPHALT))
    line = cover(y.abs() - 0.025) * _dashes(x, 0.35, 0.6) * rng.chance(0.7, n, 1, 1)
    return paint(image, line, tint(rng, n, WHITE))


def road(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a road through the country."""
    x, y = bends(rng, n, 0.2)
    return _road(wooded(rng, countryside(rng, n), 1.3), rng, x, y, rng.uniform(0.1, 0.2, n, 1, 1))


def crossroads(rng: KeyedRandom, n: int) -> Tensor:
    """Draw two roads that cross at about a right angle."""
    x, y = frame(rng, n, shift=0.25)
    width = rng.uniform(0.1, 0.2, n, 1, 1)
    image = _road(wooded(rng, countryside(rng, n), 1.3), rng, x, y, width)
    return _road(image, rng, y, x + rng.uniform(-0.3, 0.3, n, 1, 1) * y, width)


def roundabout(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a ring of road with arms."""
    x, y = frame(rng, n, shift=0.15)
    image = countryside(rng, n)
    width = rng.uniform(0.09, 0.15, n, 1, 1)
    arms = torch.minimum(x.abs(), torch.where(rng.chance(0.7, n, 1, 1) > 0, y.abs(), x.abs())) - width
    radius = rng.uniform(0.38, 0.55, n, 1, 1)
    ring = disc(x, y, radius).abs() - width
    asphalt = tint(rng, n, ASPHALT)
    image = paint(image, cover(arms), asphalt)
    image = paint(image, cover(disc(x, y, radius)), ground(rng, n, GRASS))
    return paint(image, cover(ring), asphalt)


def railway(rng: KeyedRandom, n: int) -> Tensor:
    """Draw ballast, sleepers and rails."""
    x, y = bends(rng, n, 0.1)
    image = paint(countryside(rng, n), cover(y.abs() - 0.3), ground(rng, n, (0.56, 0.50, 0.45)))
    image = paint(image, cover(y.abs() - 0.22) * _dashes(x, 0.2, 0.5), tint(rng, n, (0.28, 0.22, 0.18)))
    return paint(image, cover((y.abs() - 0.15).abs() - 0.03), tint(rng, n, (0.85, 0.85, 0.88)))


def runway(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a broad strip with threshold bars and a centre line."""
    x, y = frame(rng, n, shift=0.2)
    half = rng.uniform(0.3, 0.42, n, 1, 1)
    image = paint(ground(rng, n, GRASS, CONCRETE), cover(y.abs() - half), tint(rng, n, (0.30, 0.30, 0.32)))
    white = tint(rng, n, WHITE)
    image = paint(image, cover(y.abs() - 0.035) * _dashes(x, 0.5, 0.6), white)
    start = rng.uniform(-0.9, -0.4, n, 1, 1)
    bars = cover((x - start).abs() - 0.14) * _dashes(y, 0.16, 0.55) * cover(y.abs() - half + 0.05)
    return paint(image, bars, white)


def bridge(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a road over water."""
    x, y = frame(rng, n, shift=0.15)
    image = paint(
        countryside(rng, n), cover(y.abs() - rng.uniform(0.35, 0.6, n, 1, 1)), ground(rng, n, WATER, rough=0.02)
    )
    deck = rng.uniform(0.1, 0.16, n, 1, 1)
    image = paint(image, cover(x.abs() - deck - 0.06), tint(rng, n, CONCRETE))
    return _road(image, rng, y, x, deck)


def parking_lot(rng: KeyedRandom, n: int) -> Tensor:
    """Draw rows of cars on asphalt or concrete."""
    x, y = frame(rng, n)
    image = ground(rng, n, ASPHALT, CONCRETE, rough=0.02)
    across, along = 0.26, 0.5
    u = torch.remainder(x / across, 1.0) * across - across / 2
    v = torch.remainder(y / along, 1.0) * along - along / 2
    # The number of the stall at each pixel. ``cars`` has a colour for each stall.
    stall = (torch.floor(x / across).long() + 6) * 12 + torch.floor(y / along).long() + 6
    palette = torch.tensor([WHITE, (0.12, 0.12, 0.14), (0.72, 0.14, 0.14), (0.18, 0.28, 0.62), (0.66, 0.67, 0.70)])
    cars = palette[rng.pick(len(palette), n, 144)]
    index = stall.clamp(0, 143).view(n, -1)
    colour = cars.gather(1, index[..., None].expand(-1, -1, 3)).permute(0, 2, 1).reshape(n, 3, *x.shape[1:])
    parked = rng.chance(0.8, n, 144).gather(1, index).view_as(x)
    return paint(image, cover(box(u, v, 0.085, 0.18)) * parked, colour)


def _roof(image: Tensor, x: Tensor, y: Tensor, half: tuple[Tensor, Tensor], colour: Tensor) -> Tensor:
    """Draw a ridged roof with its shadow."""
    image = paint(image, cover(box(x - 0.07, y - 0.07, *half)) * 0.6, colour * 0.1)
    shade = torch.where(y > 0, 0.82, 1.0)[:, None]
    return paint(image, cover(box(x, y, *half)), colour * shade)


def village(rng: KeyedRandom, n: int, roof: int | None = None) -> Tensor:
    """Draw up to six houses along a street. `roof` is an index into words.ROOFS; None mixes the colours."""
    x, y = frame(rng, n, shift=0.1)
    image = wooded(rng, ground(rng, n, GRASS, (0.60, 0.56, 0.44)), 1.2)
    image = paint(image, cover(y.abs() - 0.1), tint(rng, n, ASPHALT))
    bases = list(ROOFS.values())
    for side in (-1.0, 1.0):
        for place in (-0.72, 0.0, 0.72):
            kinds = rng.pick(len(bases), n) if roof is None else torch.full((n,), roof)
            u = x - place - rng.uniform(-0.08, 0.08, n, 1, 1)
            v = y - side * rng.uniform(0.42, 0.6, n, 1, 1)
            half = rng.uniform(0.17, 0.27, n, 1, 1), rng.uniform(0.14, 0.22, n, 1, 1)
            built = _roof(image, u, v, half, tints(rng, kinds, bases))
            image = torch.where(rng.chance(0.9, n, 1, 1, 1) > 0, built, image)
    return image


def warehouse(rng: KeyedRandom, n: int, roof: int | None = None) -> Tensor:
    """Draw a large roof with ribs. `roof` is an index into words.ROOFS; None mixes the colours."""
    x, y = frame(rng, n, shift=0.15)
    image = ground(rng, n, CONCRETE, ASPHALT, GRASS)
    bases = list(ROOFS.values())
    kinds = rng.pick(len(bases), n) if roof is None else torch.full((n,), roof)
    ribs = 1.0 - 0.12 * _dashes(x, 0.2, 0.3)[:, None]
    half = rng.uniform(0.6, 0.8, n, 1, 1), rng.uniform(0.4, 0.6, n, 1, 1)
    return _roof(image, x, y, half, tints(rng, kinds, bases) * ribs)


def tank_farm(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a cluster of round tanks with shadows."""
    x, y = frame(rng, n, shift=0.15)
    image = ground(rng, n, CONCRETE, (0.62, 0.52, 0.38), GRASS)
    radius = rng.uniform(0.24, 0.36, n, 1, 1)
    for u, v in ((x - 0.42, y - 0.42), (x + 0.42, y - 0.42), (x - 0.42, y + 0.42), (x + 0.42, y + 0.42)):
        built = paint(image, cover(disc(u - 0.08, v - 0.08, radius)) * 0.6, tint(rng, n, (0.08, 0.08, 0.08)))
        built = paint(built, cover(disc(u, v, radius)), tint(rng, n, (0.90, 0.90, 0.88)))
        built = paint(built, cover(disc(u, v, radius * 0.75).abs() - 0.015), tint(rng, n, (0.6, 0.6, 0.6)))
        image = torch.where(rng.chance(0.85, n, 1, 1, 1) > 0, built, image)
    return image


def solar_farm(rng: KeyedRandom, n: int) -> Tensor:
    """Draw rows of dark blue panels."""
    x, y = frame(rng, n, shift=0.1)
    image = ground(rng, n, GRASS, (0.66, 0.58, 0.42))
    panels = _dashes(y, 0.36, 0.62) * (1.0 - 0.5 * _dashes(x, 0.2, 0.2)) * cover(box(x, y, 0.95, 0.9))
    return paint(image, panels, tint(rng, n, (0.10, 0.14, 0.33)))


def stadium(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a red running track around a marked pitch."""
    x, y = frame(rng, n, shift=0.12, zoom=(0.85, 1.05))
    oval = disc((x.abs() - 0.38).clamp(min=0.0), y, 0.55)
    image = paint(ground(rng, n, CONCRETE, GRASS), cover(oval), tint(rng, n, (0.72, 0.36, 0.26)))
    image = paint(image, cover(oval + 0.2), ground(rng, n, (0.28, 0.56, 0.24), rough=0.02))
    lines = torch.minimum(x.abs(), box(x, y, 0.55, 0.3).abs()) - 0.02
    return paint(image, cover(lines) * cover(oval + 0.2), tint(rng, n, WHITE))


def swimming_pool(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a bright pool with lanes on a paved deck."""
    x, y = frame(rng, n, shift=0.15)
    image = wooded(rng, ground(rng, n, CONCRETE, GRASS), 1.3)
    half = rng.uniform(0.4, 0.65, n, 1, 1), rng.uniform(0.25, 0.38, n, 1, 1)
    image = paint(image, cover(box(x, y, half[0] + 0.1, half[1] + 0.1)), tint(rng, n, (0.85, 0.82, 0.76)))
    pool = cover(box(x, y, *half))
    image = paint(image, pool, ground(rng, n, (0.25, 0.72, 0.82), rough=0.03))
    return paint(image, pool * _dashes(y, 0.2, 0.25), tint(rng, n, WHITE))


def canal(rng: KeyedRandom, n: int) -> Tensor:
    """Draw a straight, narrow stretch of water with paved banks."""
    _, y = frame(rng, n, shift=0.25)
    half = rng.uniform(0.14, 0.24, n, 1, 1)
    image = paint(countryside(rng, n), cover(y.abs() - half - 0.1), tint(rng, n, CONCRETE))
    return paint(image, cover(y.abs() - half), waves(rng, n) * rng.uniform(0.9, 1.1, n, 1, 1, 1))
