"""Handwritten characters: thin, wobbling pen strokes along the centre lines of printed characters."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures import glyphs
from orchestrator.drawn_world.pictures.canvas import SIDE, clouds, cover, grain, grid
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom

PENS = ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSerif-Italic", "STIXGeneralItalic")
"""Faces whose centre lines look most like handwriting."""


def thin(
    mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Thin the shapes in masks (..., height, width) to lines one pixel wide (Zhang and Suen)."""
    mask = mask.copy()
    while True:
        before = int(mask.sum())
        for odd in (False, True):
            padded = np.pad(mask, [(0, 0)] * (mask.ndim - 2) + [(1, 1), (1, 1)])
            height, width = mask.shape[-2:]
            # the eight neighbours, clockwise from north
            around = np.stack(
                [
                    padded[..., 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
                    for dy, dx in ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
                ]
            )
            neighbours = around.sum(0)
            rises = (~around & np.roll(around, -1, axis=0)).sum(0)
            north, east, south, west = around[0], around[2], around[4], around[6]
            open_sides = (
                (~(north & east & west) & ~(north & south & west))
                if odd
                else (~(north & east & south) & ~(east & south & west))
            )
            mask &= ~((neighbours >= 2) & (neighbours <= 6) & (rises == 1) & open_sides)
        if int(mask.sum()) == before:
            return mask


@cache
def skeletons() -> Tensor:
    """Return each pixel's distance to the centre line of each character, in pixels, (pens, characters, tile, tile)."""
    lines = torch.from_numpy(thin(glyphs.tiles(PENS) > 110))
    axis = torch.arange(glyphs.TILE, dtype=torch.float32)
    pixels = torch.cartesian_prod(axis, axis)
    out = torch.empty(lines.shape)
    for pen in range(lines.shape[0]):
        for character in range(lines.shape[1]):
            points = lines[pen, character].nonzero().float()
            out[pen, character] = torch.cdist(pixels, points).amin(1).view(glyphs.TILE, glyphs.TILE)
    return out


def lines(rng: KeyedRandom, character: Tensor, width: tuple[float, float], wobble: float, fit: float) -> Tensor:
    """Return how much of each pixel the strokes of the characters (n,) cover, (n, 32, 32).

    `width` is the range of half the width of a line, in pixels of a tile. At a `fit` of 1, a capital fills about two
    thirds of the picture's height; the size varies by a factor of 0.7 to 1.3.
    """
    n = len(character)
    tile = skeletons()[rng.pick(len(PENS), n), character][:, None]
    x, y = grid()
    angle, shear = rng.uniform(-0.2, 0.2, n, 1, 1), rng.uniform(-0.25, 0.25, n, 1, 1)
    wide = 0.8 / (fit * rng.uniform(0.7, 1.3, n, 1, 1))
    tall = wide * rng.uniform(0.75, 1.2, n, 1, 1)
    x = x - rng.uniform(-0.15, 0.15, n, 1, 1)
    y = y - rng.uniform(-0.15, 0.15, n, 1, 1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    u, v = wide * (cos * x + sin * y), tall * (cos * y - sin * x)
    bend = wobble * clouds(rng, n, 3, channels=2)
    where = torch.stack([u + shear * v + bend[:, 0], v + bend[:, 1]], dim=-1)
    distance = functional.grid_sample(tile, where, mode="bilinear", padding_mode="border", align_corners=False)[:, 0]
    # A pixel of the picture is about 1.2 pixels of a tile wide.
    return cover(distance - rng.uniform(*width, n, 1, 1), softness=1.5)


def on_paper(rng: KeyedRandom, character: Tensor) -> Tensor:
    """Draw thin dark strokes on white paper, (n, 3, 32, 32)."""
    n = len(character)
    ink = lines(rng, character, width=(0.5, 1.3), wobble=0.14, fit=1.0)[:, None]
    paper, tone = rng.uniform(0.9, 1.0, n, 1, 1, 1), rng.uniform(0.0, 0.3, n, 1, 1, 1)
    image = (paper + ink * (tone - paper)).expand(n, 3, SIDE, SIDE)
    return grain(rng, image, rng.uniform(0.0, 0.04, n, 1, 1, 1)).clamp(0.0, 1.0)


def on_slate(rng: KeyedRandom, character: Tensor) -> Tensor:
    """Draw broad light strokes on black, 70 % of them as if scanned at eight pixels per side, (n, 3, 32, 32)."""
    n = len(character)
    ink = lines(rng, character, width=(1.0, 2.6), wobble=0.10, fit=1.35)[:, None] * rng.uniform(0.8, 1.0, n, 1, 1, 1)
    coarse = functional.avg_pool2d(ink, 4)
    blurred = functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    image = torch.where(rng.chance(0.7, n, 1, 1, 1) > 0, blurred, ink).expand(n, 3, SIDE, SIDE)
    return grain(rng, image, rng.uniform(0.0, 0.03, n, 1, 1, 1)).clamp(0.0, 1.0)
