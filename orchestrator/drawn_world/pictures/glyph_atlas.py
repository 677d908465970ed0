"""Characters as pictures, rendered once a process with the faces that ship inside matplotlib.

Two atlases: `printed` holds filled masks, `skeletons` holds the distance to each character's thinned centre line,
from which a stroke of any width can be drawn.
"""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

TILE = 48
"""Side of a character's tile, in pixels; an em is 36 of them."""

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase + "αβγδεζηθικλμνξοπρστυφχψω"
"""The rows of both atlases, in order."""

FIRST = {"digit": 0, "upper": 10, "lower": 36, "greek": 62}
"""Row of the first character of each kind."""

COUNT = {"digit": 10, "upper": 26, "lower": 26, "greek": 24}
"""Characters of each kind."""

FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
)
"""Font faces of the atlas: three families, each plain, bold and slanted."""

PENS = ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSerif-Italic", "STIXGeneralItalic")
"""Faces whose centre lines look most like handwriting."""

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def _tiles(faces: tuple[str, ...]) -> Bytes:
    """Render every character in every face, centred by its bounding box, (faces, characters, TILE, TILE)."""
    import matplotlib  # slow to import, and only needed for the path of its fonts

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    tiles = np.zeros((len(faces), len(CHARACTERS), TILE, TILE), dtype=np.uint8)
    for row, face in enumerate(faces):
        font = ImageFont.truetype(str(folder / f"{face}.ttf"), 36, layout_engine=ImageFont.Layout.BASIC)
        for column, character in enumerate(CHARACTERS):
            left, top, right, bottom = font.getbbox(character)
            tile = Image.new("L", (TILE, TILE))
            origin = ((TILE - left - right) / 2, (TILE - top - bottom) / 2)
            ImageDraw.Draw(tile).text(origin, character, fill=255, font=font)
            tiles[row, column] = np.asarray(tile)
    return tiles


@cache
def printed() -> Tensor:
    """Masks in [0, 1], (faces, characters, TILE, TILE)."""
    return torch.from_numpy(_tiles(FACES)).float() / 255.0


def thin(
    mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Zhang and Suen's thinning of a stack of masks (..., height, width) to lines one pixel wide."""
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
    """Distance in tile pixels to each character's centre line, (pens, characters, TILE, TILE)."""
    lines = torch.from_numpy(thin(_tiles(PENS) > 110))
    axis = torch.arange(TILE, dtype=torch.float32)
    pixels = torch.cartesian_prod(axis, axis)
    out = torch.empty(lines.shape)
    for pen in range(lines.shape[0]):
        for character in range(lines.shape[1]):
            points = lines[pen, character].nonzero().float()
            out[pen, character] = torch.cdist(pixels, points).amin(1).view(TILE, TILE)
    return out
