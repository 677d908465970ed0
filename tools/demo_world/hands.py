"""Hands that show the digits 0 to 9 in sign language: a palm, a wrist, and five fingers that stretch, fold or touch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orchestrator.drawn_world.pictures.canvas import (
    PIXEL,
    capsule,
    clouds,
    cover,
    disc,
    frame,
    grain,
    paint,
    tints,
)
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.words import Colour

SKINS: tuple[Colour, ...] = ((0.74, 0.60, 0.44), (0.64, 0.50, 0.37), (0.83, 0.69, 0.55), (0.52, 0.39, 0.31))
PAPER: tuple[Colour, ...] = ((0.80, 0.78, 0.76), (0.70, 0.69, 0.68), (0.88, 0.88, 0.86), (0.62, 0.60, 0.62))

# Index, middle, ring and little finger, with the thumb on the right: x and y of the base, length, angle from upright.
FINGERS = (
    (0.21, -0.12, 0.62, 0.12),
    (0.05, -0.17, 0.68, 0.02),
    (-0.11, -0.15, 0.63, -0.09),
    (-0.25, -0.06, 0.50, -0.24),
)

STRETCHED: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (0, 1),
    (0, 1),
    (0, 1, 2, 3),
    (0, 1, 2, 3),
    (0, 1, 2),
    (0, 1, 3),
    (0, 2, 3),
    (1, 2, 3),
)
"""Fingers that are stretched for each digit. The thumb is stretched for 3 and 5, and touches a finger for 6 to 9."""

TOUCHED = {6: 3, 7: 2, 8: 1, 9: 0}
"""Digit -> the finger that the thumb touches."""


def _limb(image: Tensor, distance: Tensor, skin: Tensor) -> Tensor:
    """Draw a finger over the image: a dark outline, then skin that is darker at the edge."""
    image = paint(image, cover(distance - 0.7 * PIXEL) * 0.55, 0.45 * skin)
    shade = (0.86 + 1.6 * (-distance).clamp(0.0, 0.1))[:, None]
    return paint(image, cover(distance), skin * shade)


def _ring(rng: KeyedRandom, n: int, image: Tensor, x: Tensor, y: Tensor, skin: Tensor) -> Tensor:
    """Draw fingers and thumb that form an O above the wrist."""
    wide = rng.uniform(0.22, 0.34, n, 1, 1)
    image = _limb(image, disc(x + 0.08, (y - 0.2) * 0.9, 0.3), skin)
    ring = disc(x - 0.06, (y + 0.22) * rng.uniform(0.75, 1.1, n, 1, 1), wide).abs() - rng.uniform(0.10, 0.15, n, 1, 1)
    return _limb(image, ring, skin)


def draw(rng: KeyedRandom, n: int, digit: int) -> Tensor:
    """Draw hands that show the digit, on a light background, (n, 3, 32, 32)."""
    x, y = frame(rng, n, turn=0.22, shift=0.14, zoom=(0.78, 1.25))
    x = torch.where(rng.chance(0.96, n, 1, 1) > 0, x, -x)
    choice = rng.pick(len(SKINS), n)
    skin = tints(rng, choice, SKINS, 0.03) * (1.0 + 0.06 * clouds(rng, n, 5))
    u, v = frame(rng, n, shift=0.4)
    vignette = 1.0 - rng.uniform(0.0, 0.3, n, 1, 1) * (u * u + v * v)
    image = tints(rng, rng.pick(len(PAPER), n), PAPER, 0.03) * vignette[:, None]

    def number(centre: float, spread: float = 0.03) -> Tensor:
        return centre + rng.uniform(-spread, spread, n, 1, 1)

    wrist = capsule(x, y, (number(0.0), number(0.3)), (number(-0.05, 0.15), number(1.4)), 0.2, 0.17)
    image = _limb(image, wrist, skin)
    if digit == 0:
        return grain(rng, _ring(rng, n, image, x, y, skin), 0.02).clamp(0.0, 1.0)

    palm = disc(x + 0.02, (y - 0.16) * 0.9, number(0.32, 0.02))
    fan = rng.uniform(0.7, 1.7, n, 1, 1)
    thick = rng.uniform(0.075, 0.095, n, 1, 1)
    image = _limb(image, palm, skin)
    tip = number(0.12, 0.06), number(0.1, 0.05)
    for finger, (left, top, length, angle) in enumerate(FINGERS):
        base = number(left, 0.015), number(top, 0.02)
        turn = angle * fan + rng.uniform(-0.05, 0.05, n, 1, 1)
        reach = length * rng.uniform(0.9, 1.1, n, 1, 1)
        if finger in STRETCHED[digit]:
            end = base[0] + reach * torch.sin(turn), base[1] - reach * torch.cos(turn)
            image = _limb(image, capsule(x, y, base, end, thick, 0.8 * thick), skin)
        elif TOUCHED.get(digit) == finger:
            knee = base[0] + 0.4 * reach * torch.sin(turn) + 0.03, base[1] - 0.4 * reach
            tip = 0.55 * base[0] + number(0.16, 0.04), base[1] + number(0.1, 0.06)
            image = _limb(image, capsule(x, y, base, knee, thick), skin)
            image = _limb(image, capsule(x, y, knee, tip, thick, 0.85 * thick), skin)
        else:
            image = _limb(image, capsule(x, y, base, (base[0] + 0.02, base[1] + number(0.17)), 1.05 * thick), skin)

    root = number(0.22), number(0.34)
    if digit in (3, 5):
        out = rng.uniform(0.6, 1.2, n, 1, 1)
        end = root[0] + 0.55 * torch.sin(out), root[1] - 0.55 * torch.cos(out) * 1.1
        image = _limb(image, capsule(x, y, root, end, 1.15 * thick, 0.9 * thick), skin)
    else:
        bulge = number(0.38, 0.04), number(0.14, 0.04)
        if digit == 4:
            bulge, tip = (number(0.24, 0.03), number(0.2, 0.03)), (number(-0.02, 0.06), number(0.12, 0.05))
        image = _limb(image, capsule(x, y, root, bulge, 1.1 * thick), skin)
        image = _limb(image, capsule(x, y, bulge, tip, thick, 0.9 * thick), skin)
    light = 1.0 - 0.12 * torch.sin(x * 1.5 + rng.uniform(0.0, 2.0 * math.pi, n, 1, 1))
    return grain(rng, image * light[:, None], rng.uniform(0.0, 0.025, n, 1, 1, 1)).clamp(0.0, 1.0)
