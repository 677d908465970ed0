"""The registry of drawn tasks: what each one asks, and how its pictures are taken.

All tasks of a domain share a look that the picture book never shows (a worn photocopier, a hazy camera); each has a
twist of its own. Models fine-tuned on the sibling tasks therefore hold directions that help a held-out one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from orchestrator.datasets.toy.settings import Hand, Sensor
from orchestrator.datasets.toy.words import (
    DIGITS,
    GREEK,
    INK_NAMES,
    KIND_NAMES,
    KIND_WORDS,
    KINDS,
    LETTERS,
    Kind,
)

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.datasets.toy.dice import Dice

WORLD_VERSION = 1
"""Part of every drawn dataset's identity; it changes when any picture does."""

SIZES: dict[str, int] = {"train": 1000, "test": 600}

Split = Literal["train", "test"]


@dataclass(frozen=True)
class GlyphTask:
    """One question about printed characters."""

    name: str
    class_names: tuple[str, ...]
    asks: Literal["character", "kind", "ink"]
    kinds: tuple[Kind, ...] = KINDS
    """The characters that appear."""
    hand: Hand = field(default_factory=Hand)
    palette: Literal["any", "printed"] = "any"
    """Any ink on any other paper, or dark inks on light papers as in print."""
    copy: float = 0.5
    """Strength of the photocopier."""
    domain: Literal["glyphs"] = "glyphs"


@dataclass(frozen=True)
class AerialTask:
    """One question about scenes from above; the class names are scenes."""

    name: str
    class_names: tuple[str, ...]
    sensor: Sensor = field(default_factory=Sensor)
    haze: float = 0.7
    """Strength of the haze."""
    domain: Literal["aerial"] = "aerial"


ToyTask = GlyphTask | AerialTask

DARK = ("black", "red", "green", "blue", "purple", "brown")
LIGHT = ("white", "yellow", "cyan", "pink")
"""Inks and papers of the printed palette."""

TELLING: dict[Kind, tuple[str, ...]] = {
    "digit": DIGITS[2:],
    "upper": tuple("abdefghklmnqrt"),
    "lower": tuple("abdefghkmnqrty"),
    "greek": ("beta", "gamma", "delta", "zeta", "theta", "lambda", "mu", "xi", "pi", "sigma", "phi", "psi", "omega"),
}
"""Characters that show their kind: no O beside a zero, no capital S beside a small one."""

CALM = Hand(clutter=(0.0, 0.08), noise=(0.0, 0.06), shift=0.1)
TILTED = Hand(tilt=(0.35, 0.75), clutter=(0.0, 0.08), noise=(0.0, 0.06), shift=0.1)
ROUGH = Hand(clutter=(0.15, 0.4), noise=(0.1, 0.25))

_ALL: tuple[ToyTask, ...] = (
    GlyphTask("glyph-digits", DIGITS, "character", ("digit",)),
    GlyphTask("glyph-tilted-digits", DIGITS, "character", ("digit",), TILTED),
    GlyphTask("glyph-capitals", LETTERS, "character", ("upper",), CALM, "printed"),
    GlyphTask("glyph-small-letters", LETTERS, "character", ("lower",), CALM),
    GlyphTask("glyph-greek", GREEK, "character", ("greek",), CALM, "printed"),
    GlyphTask("glyph-inks", INK_NAMES[:8], "ink", KINDS, ROUGH),
    GlyphTask("glyph-kinds", KIND_NAMES, "kind", KINDS, CALM, "printed"),
    AerialTask(
        "aerial-land",
        (
            "forest",
            "meadow",
            "desert",
            "lake",
            "river",
            "road",
            "village",
            "warehouse",
            "railway",
            "orchard",
            "beach",
            "stadium",
        ),
    ),
    AerialTask("aerial-water", ("sea", "lake", "island", "river", "beach", "harbour", "canal", "bridge")),
    AerialTask(
        "aerial-traffic",
        ("road", "crossroads", "roundabout", "railway", "runway", "parking lot", "bridge", "canal"),
    ),
    AerialTask(
        "aerial-crops",
        (
            "wheat field",
            "ploughed field",
            "vegetable field",
            "flower field",
            "orchard",
            "irrigation circle",
            "meadow",
        ),
    ),
    AerialTask(
        "aerial-roofs",
        tuple(f"village with {colour} roofs" for colour in ("red", "grey", "brown", "white", "blue")),
    ),
    AerialTask(
        "aerial-seasons",
        tuple(
            f"{scene} in {season}"
            for scene in ("forest", "meadow")
            for season in ("spring", "summer", "autumn", "winter")
        ),
    ),
    AerialTask(
        "aerial-infrared",
        (
            "forest",
            "desert",
            "ploughed field",
            "vegetable field",
            "irrigation circle",
            "lake",
            "river",
            "road",
            "solar farm",
            "village",
        ),
        Sensor("infrared"),
    ),
    AerialTask(
        "aerial-coarse",
        (
            "forest",
            "sea",
            "beach",
            "river",
            "roundabout",
            "runway",
            "tank farm",
            "stadium",
            "snowfield",
            "wheat field",
        ),
        Sensor("grey", 12),
    ),
)

TASKS: dict[str, ToyTask] = {task.name: task for task in _ALL}


def draw(
    task_name: str, split: Split
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """The pictures (N, 32, 32, 3) of a split and their labels (N,), balanced and shuffled; always the same ones."""
    from orchestrator.datasets.toy.canvas import (
        to_bytes,
    )  # the drawing kit needs torch; listing tasks does not
    from orchestrator.datasets.toy.dice import Dice

    task, count = TASKS[task_name], SIZES[split]
    dice = Dice("task", WORLD_VERSION, task_name, split)
    order = dice.order(count)
    labels = (order % len(task.class_names)).sort().values
    painter = _glyphs if isinstance(task, GlyphTask) else _aerial
    images = painter(dice, task, labels)  # type: ignore[arg-type]
    return to_bytes(images[order]), np.asarray(labels[order].numpy(), dtype=np.int64)


def _glyphs(dice: Dice, task: GlyphTask, labels: Tensor) -> Tensor:
    """Characters whose asked-for concept is the label; everything else is free."""
    from dataclasses import replace

    import torch

    from orchestrator.datasets.toy import atlas, glyphs, looks

    n = len(labels)
    things = glyphs.roll(dice, n, task.kinds)
    if task.palette == "printed":
        dark, light = (torch.tensor([INK_NAMES.index(ink) for ink in inks]) for inks in (DARK, LIGHT))
        things = replace(things, ink=dark[dice.pick(len(dark), n)], paper=light[dice.pick(len(light), n)])
    if task.asks == "character":
        (kind,) = task.kinds
        rows = torch.tensor([atlas.FIRST[kind] + KIND_WORDS[kind].index(name) for name in task.class_names])
        things = replace(things, character=rows[labels])
    elif task.asks == "kind":
        spread = dice.uniform(0.0, 1.0, n)
        for label, kind in enumerate(task.kinds):
            rows = torch.tensor([atlas.FIRST[kind] + KIND_WORDS[kind].index(name) for name in TELLING[kind]])
            mine = labels == label
            things.character[mine] = rows[(spread[mine] * len(rows)).long()]
    else:
        shift = 1 + dice.pick(len(INK_NAMES) - 1, n)
        things = replace(things, ink=labels, paper=(labels + shift) % len(INK_NAMES))
    return looks.photocopy(dice, glyphs.draw(dice, things, task.hand), task.copy)


def _aerial(dice: Dice, task: AerialTask, labels: Tensor) -> Tensor:
    """Scenes by their class names, through the task's sensor and the domain's haze; labels are sorted."""
    import torch

    from orchestrator.datasets.toy import looks
    from orchestrator.datasets.toy.scenes import ALL

    counts = torch.bincount(labels, minlength=len(task.class_names)).tolist()
    painted = [ALL[name](dice, count) for name, count in zip(task.class_names, counts, strict=True)]
    image = torch.cat(painted).clamp(0.0, 1.0)
    bands: dict[str, Callable[[Tensor], Tensor]] = {"infrared": looks.infrared, "grey": looks.grey}
    if task.sensor.bands in bands:
        image = bands[task.sensor.bands](image)
    if task.sensor.pixels != image.shape[-1]:
        image = looks.coarse(image, task.sensor.pixels)
    return looks.haze(dice, image, task.haze)
