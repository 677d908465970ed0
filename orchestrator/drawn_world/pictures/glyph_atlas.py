"""Characters as pictures. Each process renders them once, with the fonts that matplotlib contains."""

import string
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

TILE = 48
"""Side of a character's tile, in pixels. An em has 36 pixels."""

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase + "αβγδεζηθικλμνξοπρστυφχψω"
"""The characters in the order of the atlas, which has one row for each."""

FIRST = {"digit": 0, "upper": 10, "lower": 36, "greek": 62}
"""Row of the first character of each kind."""

COUNT = {"digit": 10, "upper": 26, "lower": 26, "greek": 24}
"""Number of characters of each kind."""

FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
)  # fmt: skip
"""Font faces of the atlas: three families, each plain, bold and slanted."""

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def tiles(faces: tuple[str, ...]) -> Bytes:
    """Render every character in every face, centred by its bounding box, (faces, characters, TILE, TILE)."""
    import matplotlib  # slow to import; only the path of its fonts is needed

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = np.zeros((len(faces), len(CHARACTERS), TILE, TILE), dtype=np.uint8)
    for row, face in enumerate(faces):
        font = ImageFont.truetype(str(folder / f"{face}.ttf"), 36, layout_engine=ImageFont.Layout.BASIC)
        for column, character in enumerate(CHARACTERS):
            left, top, right, bottom = font.getbbox(character)
            tile = Image.new("L", (TILE, TILE))
            origin = ((TILE - left - right) / 2, (TILE - top - bottom) / 2)
            ImageDraw.Draw(tile).text(origin, character, fill=255, font=font)
            found[row, column] = np.asarray(tile)
    return found


@cache
def printed() -> Tensor:
    """Return the masks of all characters, in [0, 1], (faces, characters, TILE, TILE)."""
    return torch.from_numpy(tiles(FACES)).float() / 255.0
