"""Clothes: silhouettes cut from width profiles, in grey on black or in colour on a floor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orchestrator.drawn_world.pictures.canvas import (
    SIDE,
    box,
    capsule,
    clouds,
    cover,
    disc,
    frame,
    grain,
    paint,
    tint,
)
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom

Cut = tuple[Tensor, Tensor]
"""Masks of the cloth, (n, 32, 32), and of dark details on the cloth such as buttons and seams, (n, 32, 32)."""

Tailor = Callable[[KeyedRandom, Tensor, Tensor], Cut]


def profile(position: Tensor, knots: Tensor) -> Tensor:
    """Interpolate linearly between knots (n, k), evenly spread over 0 to 1, at each position (n, ...)."""
    n, count = knots.shape
    place = position.clamp(0.0, 1.0) * (count - 1)
    left = place.floor().clamp(max=count - 2).long()
    flat = left.reshape(n, -1)
    low = knots.gather(1, flat).view_as(place)
    high = knots.gather(1, flat + 1).view_as(place)
    return low + (high - low) * (place - left)


def _knots(rng: KeyedRandom, n: int, *widths: float) -> Tensor:
    """Return half widths from top to bottom with random variation, (n, k)."""
    return torch.tensor(widths) * rng.uniform(0.88, 1.12, n, 1) + rng.uniform(-0.03, 0.03, n, len(widths))


def _torso(rng: KeyedRandom, x: Tensor, y: Tensor, bottom: float, *widths: float) -> tuple[Tensor, Tensor]:
    """Return the distance to a body from the shoulders (y = -0.85) down to `bottom`, and the distance to the neck."""
    n = len(x)
    low = bottom + rng.uniform(-0.06, 0.06, n, 1, 1)
    half = profile((y + 0.85) / (low + 0.85), _knots(rng, n, *widths))
    slope = 0.35 * (x.abs() - 0.15).clamp(min=0.0)
    body = torch.maximum(x.abs() - half, torch.maximum(-0.85 + slope - y, y - low))
    neck = disc(x, (y + 0.88) * 1.2, rng.uniform(0.12, 0.24, n, 1, 1))
    return torch.maximum(body, -neck), neck


def _sleeves(
    rng: KeyedRandom, x: Tensor, y: Tensor, length: tuple[float, float], radius: float, spread: float
) -> Tensor:
    """Return the distance to two sleeves from the shoulders; `spread` is their largest angle from the body."""
    n = len(x)
    angle = rng.uniform(0.1, spread, n, 1, 1)
    reach = rng.uniform(*length, n, 1, 1)
    shoulder = torch.full_like(angle, 0.36), torch.full_like(angle, -0.62)
    cuff = shoulder[0] + reach * torch.sin(angle), shoulder[1] + reach * torch.cos(angle)
    return capsule(x.abs(), y, shoulder, cuff, radius, 0.75 * radius)


def _front(x: Tensor, y: Tensor, bottom: float) -> Tensor:
    """Draw a line down the middle of the front."""
    return cover(torch.maximum(x.abs() - 0.035, (y - (bottom - 0.75) / 2).abs() - (bottom + 0.75) / 2))


def t_shirt(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    body, _ = _torso(rng, x, y, 0.85, 0.46, 0.42, 0.41, 0.42)
    return cover(torch.minimum(body, _sleeves(rng, x, y, (0.35, 0.5), 0.19, 0.9))), torch.zeros_like(x)


def pullover(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    body, neck = _torso(rng, x, y, 0.85, 0.46, 0.41, 0.41, 0.40)
    hem = cover((y - 0.72).abs() - 0.03) * rng.chance(0.5, len(x), 1, 1) + cover((neck - 0.07).abs() - 0.02)
    return cover(torch.minimum(body, _sleeves(rng, x, y, (1.2, 1.5), 0.17, 0.35))), 0.6 * hem


def coat(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    body, _ = _torso(rng, x, y, 0.93, 0.48, 0.43, 0.43, 0.47)
    lapels = cover((x.abs() - 0.28 * (-0.2 - y)).abs() - 0.03) * (y < -0.2).float()
    pockets = cover(box(x.abs() - 0.25, y - 0.35, 0.1, 0.03))
    return cover(torch.minimum(body, _sleeves(rng, x, y, (1.25, 1.5), 0.18, 0.3))), _front(
        x, y, 0.93
    ) + lapels + pockets


def shirt(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    body, neck = _torso(rng, x, y, 0.85, 0.45, 0.41, 0.40, 0.43)
    long = rng.chance(0.6, n, 1, 1) > 0
    sleeves = torch.where(long, _sleeves(rng, x, y, (1.1, 1.4), 0.15, 0.4), _sleeves(rng, x, y, (0.4, 0.6), 0.18, 0.8))
    buttons = _front(x, y, 0.85) * (torch.remainder(y / 0.25, 1.0) < 0.55).float()
    return cover(torch.minimum(body, sleeves)), 0.7 * buttons + cover((neck - 0.08).abs() - 0.04)


def dress(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    body, _ = _torso(rng, x, y, 0.95, 0.27, 0.24, 0.21, 0.28, 0.36, 0.42)
    sleeves = _sleeves(rng, x * 1.5, y, (0.3, 0.9), 0.16, 0.5)
    sleeves = torch.where(rng.chance(0.5, n, 1, 1) > 0, sleeves, torch.ones_like(x))
    waist = cover((y + 0.15).abs() - 0.03) * rng.chance(0.4, n, 1, 1)
    return cover(torch.minimum(body, sleeves)), waist


def _legs(rng: KeyedRandom, x: Tensor, y: Tensor, bottom: float, top: float, width: float, flare: float) -> Cut:
    n = len(x)
    half = profile((y - top) / (bottom - top), _knots(rng, n, width * 0.85, width, width * 1.02, flare))
    crotch = top + 0.45 * (1.0 if bottom > 0.7 else 0.8)
    gap = rng.uniform(0.02, 0.14, n, 1, 1) * ((y - crotch) / (bottom - crotch)).clamp(0.0, 1.0)
    outer = torch.maximum(x.abs() - half, torch.maximum(top - y, y - bottom))
    inner = torch.where(y > crotch, x.abs() - gap - 0.03, torch.ones_like(x))
    belt = cover((y - top - 0.12).abs() - 0.02) + cover(torch.maximum(x.abs() - 0.02, (y - top - 0.2).abs() - 0.2))
    return cover(torch.maximum(outer, -inner)), 0.5 * belt


def trousers(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    return _legs(rng, x, y, 0.95, -0.95, 0.36, 0.36)


def shorts(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    return _legs(rng, x, y, 0.45, -0.5, 0.56, 0.70)


def skirt(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    low, top = rng.uniform(0.45, 0.9, n, 1, 1), -0.65
    half = profile((y - top) / (low - top), _knots(rng, n, 0.30, 0.42, 0.52, 0.60))
    pleats = (torch.sin(math.pi * 6.0 * x / half.clamp(min=0.1)) > 0.6).float() * rng.chance(0.5, n, 1, 1)
    return cover(torch.maximum(x.abs() - half, torch.maximum(top - y, y - low))), 0.4 * pleats + cover(
        (y - top - 0.1).abs() - 0.02
    )


def _shoe(rng: KeyedRandom, x: Tensor, y: Tensor, sole: float, *heights: float) -> tuple[Tensor, Tensor]:
    """Return the distance to a shoe's upper with these heights from toe (left) to heel, and the mask of its sole."""
    n = len(x)
    tall = profile((x + 0.9) / 1.8, _knots(rng, n, *heights))
    upper = torch.maximum(x.abs() - 0.88, torch.maximum(sole - tall - y, y - sole))
    return upper, cover(torch.maximum(x.abs() - 0.9, (y - sole).abs() - 0.06))


def sneaker(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    upper, sole = _shoe(rng, x, y, 0.35, 0.14, 0.28, 0.36, 0.56, 0.66, 0.58)
    laces = cover(torch.maximum((x + 0.05).abs() - 0.25, (y + 0.02).abs() - 0.22)) * (
        torch.remainder((x + y) / 0.16, 1.0) < 0.4
    )
    return torch.maximum(cover(upper), sole), 0.6 * laces + 0.8 * cover((y - 0.27).abs() - 0.025)


def ankle_boot(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    upper, sole = _shoe(rng, x, y, 0.75, 0.20, 0.30, 0.40, 0.60, 1.30, 1.50, 1.50, 1.50)
    heel = box(x - 0.65, y - 0.82, rng.uniform(0.08, 0.24, n, 1, 1), 0.12)
    return torch.maximum(cover(torch.minimum(upper, heel)), sole), cover((y - 0.66).abs() - 0.02)


def sandal(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    lift = rng.uniform(0.0, 0.6, n, 1, 1) * rng.chance(0.5, n, 1, 1)
    sole = (y - 0.4 + lift * (x + 0.4).clamp(min=0.0)).abs() - rng.uniform(0.06, 0.11, n, 1, 1)
    parts = torch.maximum(sole, x.abs() - 0.9)
    parts = torch.minimum(parts, torch.maximum((x - 0.8).abs() - 0.06, (y - 0.4 + lift * 0.5).abs() - lift))
    for place, lean in ((-0.55, 0.6), (-0.2, -0.5), (0.55, 0.4)):
        height = rng.uniform(0.35, 0.65, n, 1, 1)
        foot = torch.full_like(height, place), 0.4 - lift * max(place + 0.4, 0.0)
        strap = capsule(x, y, foot, (foot[0] + lean * height, foot[1] - height), rng.uniform(0.04, 0.08, n, 1, 1))
        parts = torch.minimum(parts, strap)
    return cover(parts), torch.zeros_like(x)


def bag(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    tall, wide = rng.uniform(0.35, 0.6, n, 1, 1), rng.uniform(0.5, 0.85, n, 1, 1)
    body = box(x * (1.0 + 0.15 * y), y - 0.9 + tall, wide, tall)
    handle = (
        disc(
            x / wide,
            (y - 0.9 + 2.0 * tall) / rng.uniform(0.5, 0.9, n, 1, 1),
            rng.uniform(0.4, 0.7, n, 1, 1),
        ).abs()
        - 0.09
    )
    handle = torch.maximum(handle, y - 0.9 + 2.0 * tall)
    flap = cover((y - 0.9 + 1.4 * tall).abs() - 0.025) + cover(box(x, y - 0.9 + 1.3 * tall, 0.07, 0.06))
    return cover(torch.minimum(body, handle)), 0.7 * flap


def hat(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    dome = torch.maximum(disc(x, (y - 0.3) / rng.uniform(0.9, 1.4, n, 1, 1), 0.65), y - 0.35)
    end = rng.uniform(0.6, 1.0, n, 1, 1)
    level = torch.full_like(end, 0.37)
    start = torch.where(rng.chance(0.5, n, 1, 1) > 0, torch.full_like(end, -0.5), -end)
    brim = capsule(x, y, (start, level), (end, level + rng.uniform(-0.05, 0.2, n, 1, 1)), 0.11)
    return cover(torch.minimum(dome, brim)), cover((y - 0.12).abs() - 0.04)


def shoes(rng: KeyedRandom, x: Tensor, y: Tensor) -> Cut:
    n = len(x)
    standing = rng.chance(0.5, n, 1, 1) > 0
    x, y = torch.where(standing, y, x), torch.where(standing, -x, y)
    apart = rng.uniform(0.38, 0.5, n, 1, 1)
    cloth, details = torch.zeros_like(x), torch.zeros_like(x)
    for side in (-1.0, 1.0):
        u, v = x - side * rng.uniform(0.0, 0.15, n, 1, 1), (y - side * apart) * 1.15
        upper, sole = _shoe(rng, u, v, 0.3, 0.28, 0.40, 0.42, 0.50, 0.62, 0.60)
        cloth = torch.maximum(cloth, torch.maximum(cover(upper), sole))
        details = details + cover(disc((u - 0.45) / 1.8, v + 0.22, 0.14))
    return cloth, details


GARMENTS: dict[str, Tailor] = {
    "t-shirt": t_shirt,
    "trousers": trousers,
    "pullover": pullover,
    "dress": dress,
    "coat": coat,
    "sandal": sandal,
    "shirt": shirt,
    "sneaker": sneaker,
    "bag": bag,
    "ankle boot": ankle_boot,
    "shorts": shorts,
    "skirt": skirt,
    "hat": hat,
    "shoes": shoes,
}
"""Name of a garment in captions -> its tailor."""


def _cloth(rng: KeyedRandom, n: int, channels: int) -> Tensor:
    """Return the brightness of a plain, striped, printed or creased fabric, (n, channels, 32, 32)."""
    x, _ = frame(rng, n)
    stripes = torch.sin(x * rng.uniform(8.0, 25.0, n, 1, 1))[:, None] * rng.chance(0.25, n, 1, 1, 1) * 0.2
    prints = clouds(rng, n, 12, channels) * rng.chance(0.25, n, 1, 1, 1) * 0.2
    return 1.0 + stripes + prints + 0.12 * clouds(rng, n, 6)


def on_black(rng: KeyedRandom, n: int, tailor: Tailor) -> Tensor:
    """Draw a garment in grey, upright on black, as in a catalogue's thumbnails, (n, 3, 32, 32)."""
    x, y = frame(rng, n, turn=0.03, shift=0.03, zoom=(0.84, 0.98))
    x = x / rng.uniform(0.95, 1.2, n, 1, 1)
    mask, details = tailor(rng, x, y)
    cloth = rng.uniform(0.3, 0.95, n, 1, 1) * _cloth(rng, n, 1)[:, 0] * (1.0 - 0.5 * details.clamp(0.0, 1.0))
    return (mask * cloth)[:, None].expand(n, 3, SIDE, SIDE).clamp(0.0, 1.0)


def on_floor(rng: KeyedRandom, n: int, tailor: Tailor) -> Tensor:
    """Draw a garment in colour, a little turned, on a floor or a sheet, (n, 3, 32, 32)."""
    x, y = frame(rng, n, turn=0.35, shift=0.12, zoom=(0.75, 1.25))
    x = torch.where(rng.chance(0.5, n, 1, 1) > 0, x, -x) / rng.uniform(0.95, 1.3, n, 1, 1)
    mask, details = tailor(rng, x, y)
    u, _ = frame(rng, n)
    boards = 1.0 - 0.25 * (torch.remainder(u / 0.4, 1.0) < 0.12).float() * rng.chance(0.3, n, 1, 1)
    floor = torch.where(
        rng.chance(0.7, n, 1, 1, 1) > 0,
        tint(rng, n, (0.68, 0.62, 0.56), 0.15),
        rng.uniform(0.05, 0.95, n, 3, 1, 1),
    )
    image = floor * boards[:, None] * (1.0 + 0.1 * clouds(rng, n, 3))
    shadow = torch.roll(mask, (1, 1), (1, 2)) * 0.5
    image = paint(image, shadow, 0.3 * floor)
    colour = rng.uniform(0.05, 0.95, n, 3, 1, 1)
    grey = colour.mean(1, keepdim=True)
    colour = grey + rng.uniform(0.0, 0.8, n, 1, 1, 1) * (colour - grey)
    cloth = colour * _cloth(rng, n, 3) * (1.0 - 0.5 * details.clamp(0.0, 1.0))[:, None]
    return grain(rng, paint(image, mask, cloth), rng.uniform(0.0, 0.03, n, 1, 1, 1)).clamp(0.0, 1.0)
