"""Printed characters. A picture combines five concepts: character, kind, ink, paper and face.

Each process renders an atlas of the characters once, with the fonts that matplotlib contains.
"""

import string
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures.canvas import clouds, grain, grid, tints
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.tasks import Bytes, Hand
from orchestrator.drawn_world.words import INKS, KIND_WORDS, KINDS, Kind

TILE = 48
"""Side of a character's tile, in pixels. An em has 36 pixels."""

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase + "αβγδεζηθικλμνξοπρστυφχψω"
"""The characters in the order of the atlas, which has one row for each."""

FIRST: dict[Kind, int] = {"digit": 0, "upper": 10, "lower": 36, "greek": 62}
"""Row of the first character of each kind."""

FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
)  # fmt: skip
"""Font faces of the atlas: three families, each plain, bold and slanted."""

STEADY = Hand()
"""How much the drawing of characters varies in the pictures for pre-training."""


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


def row_of(kind: Kind, name: str) -> int:
    """Return the row of a character in the atlas, by its kind and name."""
    return FIRST[kind] + KIND_WORDS[kind].index(name)


@dataclass(frozen=True)
class Glyphs:
    """The concepts in a batch of pictures. Every field is an int64 tensor (n,)."""

    character: Tensor
    """Row of the character in the atlas."""
    face: Tensor
    """Index into FACES: 3 * family + style."""
    ink: Tensor
    """Index of the character's colour into words.INK_NAMES."""
    paper: Tensor
    """Index of the background's colour into words.INK_NAMES. It differs from ``ink`` in every picture."""


def roll(rng: KeyedRandom, n: int, kinds: tuple[Kind, ...] = KINDS) -> Glyphs:
    """Draw the concepts of n pictures, all independent and uniform within the given kinds."""
    which = rng.pick(len(kinds), n)
    first = torch.tensor([FIRST[kind] for kind in kinds])[which]
    count = torch.tensor([len(KIND_WORDS[kind]) for kind in kinds])[which]
    character = first + (rng.uniform(0.0, 1.0, n) * count).long()
    ink = rng.pick(len(INKS), n)
    paper = (ink + 1 + rng.pick(len(INKS) - 1, n)) % len(INKS)
    return Glyphs(character, rng.pick(len(FACES), n), ink, paper)


def masks(rng: KeyedRandom, glyphs: Glyphs, hand: Hand) -> Tensor:
    """Return, for each pixel of a picture, the share that the character covers: (n, 32, 32), in [0, 1]."""
    n = len(glyphs.character)
    tile = printed()[glyphs.face, glyphs.character][:, None]
    x, y = grid()
    angle = rng.uniform(*hand.tilt, n, 1, 1)
    # An em has 0.75 of a tile's height, and at size 1 it fills 0.85 of the picture's height: 0.75 / 0.85 = 0.88.
    scale = 0.88 / rng.uniform(*hand.size, n, 1, 1)
    slant = rng.uniform(-0.1, 0.1, n, 1, 1)
    x = x - rng.uniform(-hand.shift, hand.shift, n, 1, 1)
    y = y - rng.uniform(-hand.shift, hand.shift, n, 1, 1)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    u, v = cos * x + sin * y, cos * y - sin * x
    where = torch.stack([u + slant * v, v], dim=-1)
    return functional.grid_sample(tile, where, mode="bilinear", align_corners=False)[:, 0]


def draw(rng: KeyedRandom, glyphs: Glyphs, hand: Hand = STEADY) -> Tensor:
    """Draw pictures (n, 3, 32, 32) of the given characters."""
    n = len(glyphs.character)
    mask = masks(rng, glyphs, hand)[:, None]
    bases = list(INKS.values())
    ink, paper = tints(rng, glyphs.ink, bases), tints(rng, glyphs.paper, bases)
    image = paper + mask * (ink - paper)
    image = image + rng.uniform(*hand.clutter, n, 1, 1, 1) * clouds(rng, n, 4, channels=3)
    return grain(rng, image, rng.uniform(*hand.noise, n, 1, 1, 1)).clamp(0.0, 1.0)
