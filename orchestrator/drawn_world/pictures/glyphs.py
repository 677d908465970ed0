"""Printed characters. A picture combines five concepts: character, kind, ink, paper and face."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures import glyph_atlas
from orchestrator.drawn_world.pictures.canvas import clouds, grain, grid, tints
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.tasks import Hand
from orchestrator.drawn_world.words import INKS, KINDS, Kind

STEADY = Hand()
"""How much the drawing of characters varies in the pictures for pre-training."""


@dataclass(frozen=True)
class Glyphs:
    """The concepts in a batch of pictures. Every field is an int64 tensor (n,)."""

    character: Tensor
    """Row of the character in glyph_atlas."""
    face: Tensor
    """Index into glyph_atlas.FACES: 3 * family + style."""
    ink: Tensor
    """Index of the character's colour into words.INK_NAMES."""
    paper: Tensor
    """Index of the background's colour into words.INK_NAMES. It differs from ``ink`` in every picture."""


def roll(rng: KeyedRandom, n: int, kinds: tuple[Kind, ...] = KINDS) -> Glyphs:
    """Draw the concepts of n pictures, all independent and uniform within the given kinds."""
    which = rng.pick(len(kinds), n)
    first = torch.tensor([glyph_atlas.FIRST[kind] for kind in kinds])[which]
    count = torch.tensor([glyph_atlas.COUNT[kind] for kind in kinds])[which]
    character = first + (rng.uniform(0.0, 1.0, n) * count).long()
    ink = rng.pick(len(INKS), n)
    paper = (ink + 1 + rng.pick(len(INKS) - 1, n)) % len(INKS)
    return Glyphs(character, rng.pick(len(glyph_atlas.FACES), n), ink, paper)


def masks(rng: KeyedRandom, glyphs: Glyphs, hand: Hand) -> Tensor:
    """Return, for each pixel of a picture, the share that the character covers: (n, 32, 32), in [0, 1]."""
    n = len(glyphs.character)
    tile = glyph_atlas.printed()[glyphs.face, glyphs.character][:, None]
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
