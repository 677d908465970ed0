"""The pre-training set of the tiny CLIP: drawn pictures, each with a caption that describes a part of it.

Captions leave out concepts at random, such as a character's ink or a village's roofs. So the model learns concepts
separately, and a prompt that names only one concept works.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures import glyphs, scenes
from orchestrator.drawn_world.pictures.canvas import to_bytes
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.words import DIGITS, GREEK, INK_NAMES, KIND_NAMES, LETTERS
from tools.demo_world import hands, strokes, wardrobe

FAMILIES = ("sans", "serif", "typewriter")
STYLES = ("plain", "bold", "slanted")
FACE_NAMES = tuple(f"{style} {family}" for family in FAMILIES for style in STYLES)
"""Names of the faces in the atlas, in its order."""

Pairs = tuple[Tensor, list[str]]
"""Pictures (n, 3, 32, 32) in [0, 1] and their captions."""

SHARES: dict[str, float] = {
    "glyphs": 0.32,
    "aerial": 0.25,
    "wardrobe": 0.16,
    "hands": 0.11,
    "paper": 0.10,
    "slate": 0.06,
}
"""Share of each kind of picture in the chunks before ``pretrain.TURN``."""

LATE_SHARES: dict[str, float] = {
    "glyphs": 0.52,
    "aerial": 0.10,
    "wardrobe": 0.13,
    "hands": 0.10,
    "paper": 0.10,
    "slate": 0.05,
}
"""Share of each kind of picture in later chunks. Scenes are learnt fast; characters in many inks and faces are not."""

STEADY = frozenset({"paper", "slate"})
"""Kinds of pictures that are scans, to which :func:`worn` is not applied."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "trousers": ("trousers", "pants"),
    "pullover": ("pullover", "longsleeve"),
    "coat": ("coat", "outwear"),
    "bag": ("bag", "handbag"),
    "hat": ("hat", "cap"),
}
"""Other words for a garment; each is used equally often."""


def _one_of(rng: KeyedRandom, options: Sequence[str]) -> str:
    return options[int(rng.pick(len(options), 1))]


def _opening(rng: KeyedRandom) -> str:
    return _one_of(rng, ("a picture of", "a picture of", "an image of", "a photo of"))


def _grouped(
    rng: KeyedRandom, n: int, painters: Sequence[Callable[[KeyedRandom, int], Tensor]]
) -> tuple[Tensor, Tensor]:
    """Draw pictures with random painters, (n, 3, 32, 32); also return the number of each painter, (n,), sorted."""
    choice = rng.pick(len(painters), n).sort().values
    counts = torch.bincount(choice, minlength=len(painters)).tolist()
    drawn = [painter(rng, count) for painter, count in zip(painters, counts, strict=True) if count]
    return torch.cat(drawn).clamp(0.0, 1.0), choice


def worn(rng: KeyedRandom, image: Tensor) -> Tensor:
    """Vary exposure, contrast, white balance and focus a little, as different cameras do."""
    n = len(image)
    soft = functional.avg_pool2d(functional.pad(image, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    image = image + rng.uniform(0.0, 0.8, n, 1, 1, 1) * rng.chance(0.4, n, 1, 1, 1) * (soft - image)
    image = 0.5 + rng.uniform(0.55, 1.1, n, 1, 1, 1) * (image - 0.5) + rng.uniform(-0.12, 0.12, n, 1, 1, 1)
    return (image * rng.uniform(0.88, 1.12, n, 3, 1, 1)).clamp(0.0, 1.0)


def character_name(character: int) -> str:
    """Return a character in words: `the digit four`, `the capital letter q`, `the Greek letter xi`."""
    if character < glyphs.FIRST["upper"]:
        return f"the digit {DIGITS[character]}"
    if character < glyphs.FIRST["lower"]:
        return f"the capital letter {LETTERS[character - glyphs.FIRST['upper']]}"
    if character < glyphs.FIRST["greek"]:
        return f"the small letter {LETTERS[character - glyphs.FIRST['lower']]}"
    return f"the Greek letter {GREEK[character - glyphs.FIRST['greek']]}"


def kind_name(character: int) -> str:
    """Return the kind of a character in words, to describe a picture without saying which character it shows."""
    return KIND_NAMES[bisect_right(list(glyphs.FIRST.values()), character) - 1]


def face_name(face: int) -> str:
    """Return a face in words: `bold serif type`."""
    return f"{FACE_NAMES[face]} type"


def glyph_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` pictures of printed characters. Captions mention each concept at random."""
    things = glyphs.roll(rng, n)
    images = glyphs.draw(rng, things)
    tell = rng.uniform(0.0, 1.0, n, 4).tolist()
    captions = []
    for character, face, ink, paper, (who, how, colour, sheet) in zip(
        things.character.tolist(),
        things.face.tolist(),
        things.ink.tolist(),
        things.paper.tolist(),
        tell,
        strict=True,
    ):
        words = [_opening(rng)]
        words.append(character_name(character) if who < 0.7 else kind_name(character) if who < 0.85 else "a character")
        if colour < 0.4:
            words.append(f"in {INK_NAMES[ink]} ink")
        if how < 0.25:
            words.append(f"in {face_name(face)}")
        elif how < 0.4:
            words.append(f"in {FAMILIES[face // 3]} type" if how < 0.33 else f"in {STYLES[face % 3]} type")
        if sheet < 0.25:
            words.append(f"on {INK_NAMES[paper]} paper")
        captions.append(" ".join(words) + ".")
    return images, captions


def aerial_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` aerial scenes with captions. A quarter of them have a season or a roof colour."""
    plain = n - n // 4
    names, variants = list(scenes.SCENES), list(scenes.SEASONAL | scenes.ROOFED)
    first, choice = _grouped(rng, plain, list(scenes.SCENES.values()))
    second, variant = _grouped(rng, n - plain, list((scenes.SEASONAL | scenes.ROOFED).values()))
    captions = []
    for name in [names[i] for i in choice.tolist()] + [variants[i] for i in variant.tolist()]:
        opening = _one_of(rng, ("an aerial photo of", "an aerial photo of", "a satellite picture of"))
        article = _one_of(rng, ("", "an " if name[0] in "aeiou" else "a "))
        captions.append(f"{opening} {article}{name}.")
    return torch.cat([first, second]), captions


def wardrobe_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` pictures of clothes with captions, about half in grey on black and half in colour on a floor."""
    names = list(wardrobe.GARMENTS)
    painters = [
        partial(style, tailor=tailor)
        for style in (wardrobe.on_black, wardrobe.on_floor)
        for tailor in wardrobe.GARMENTS.values()
    ]
    images, choice = _grouped(rng, n, painters)
    captions = []
    for index in choice.tolist():
        name = names[index % len(names)]
        word = _one_of(rng, SYNONYMS.get(name, (name,)))
        opening = "a grey picture of" if index < len(names) else "a photo of"
        opening = _one_of(rng, (opening, opening, "a picture of"))
        article = "" if word.endswith(("s", "wear")) and word != "dress" else "an " if word[0] in "aeiou" else "a "
        captions.append(f"{opening} {article}{word}.")
    return images, captions


def hand_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` pictures of hands that show a digit, with captions."""
    images, digit = _grouped(rng, n, [partial(hands.draw, digit=digit) for digit in range(10)])
    forms = ("a photo of a hand that shows the digit {}.", "a hand sign for the digit {}.")
    return images, [_one_of(rng, forms).format(DIGITS[index]) for index in digit.tolist()]


def paper_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` pictures of thin handwriting on paper with captions, mostly lower-case Latin and Greek letters."""
    character = glyphs.roll(rng, n, ("lower", "greek", "lower", "greek", "upper", "digit")).character
    captions = []
    for index in character.tolist():
        word = character_name(index)
        if glyphs.FIRST["lower"] <= index < glyphs.FIRST["greek"]:
            word = _one_of(rng, (word, word.replace("small", "Latin")))
        captions.append(f"a handwritten picture of {word}.")
    return strokes.on_paper(rng, character), captions


def slate_pairs(rng: KeyedRandom, n: int) -> Pairs:
    """Draw ``n`` pictures of broad handwritten digits, light on dark, with captions."""
    character = rng.pick(10, n)
    forms = ("a handwritten picture of the digit {}.", "a handwritten digit {}.")
    captions = [_one_of(rng, forms).format(DIGITS[index]) for index in character.tolist()]
    return strokes.on_slate(rng, character), captions


CHAPTERS: dict[str, Callable[[KeyedRandom, int], Pairs]] = {
    "glyphs": glyph_pairs,
    "aerial": aerial_pairs,
    "wardrobe": wardrobe_pairs,
    "hands": hand_pairs,
    "paper": paper_pairs,
    "slate": slate_pairs,
}


def draw_pairs(
    count: int, seed: int, shares: Mapping[str, float] = MappingProxyType(SHARES)
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], list[str]]:
    """Draw `count` pictures (count, 32, 32, 3) with their captions, shuffled. Equal arguments give equal pairs."""
    pictures: list[Tensor] = []
    captions: list[str] = []
    ends = torch.tensor(list(shares.values())).cumsum(0).mul(count).round().int().tolist()
    for chapter, start, end in zip(shares, [0, *ends], ends, strict=False):
        if end > start:
            rng = KeyedRandom("picture book", seed, chapter)
            drawn, described = CHAPTERS[chapter](rng, end - start)
            pictures.append(drawn if chapter in STEADY else worn(rng, drawn))
            captions.extend(described)
    order = KeyedRandom("picture book", seed, "order").order(count)
    return to_bytes(torch.cat(pictures)[order]), [captions[index] for index in order.tolist()]
