"""The registry of drawn tasks: what each task asks, and how its pictures are taken.

All tasks of a domain share a camera style that the pre-training set does not have (a worn photocopier, a hazy camera).
So what models learn in fine-tuning on some tasks of a domain helps in another task of the domain. Each task also
differs from the others of its domain, for example in its classes, its clutter or its bands.

A variant of a task shows all or some of the task's classes in other pictures, as ImageNet-A, -R, -Sketch and V2 do for
ImageNet. It has no training split.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from orchestrator.drawn_world.words import DIGITS, GREEK, INK_NAMES, KIND_NAMES, KINDS, LETTERS, ROOFS, SEASONS, Kind


@dataclass(frozen=True)
class Hand:
    """How much the drawing of a character varies. A pair is the range of a uniform draw."""

    tilt: tuple[float, float] = (-0.25, 0.25)
    """Rotation in radians."""
    size: tuple[float, float] = (0.75, 1.15)
    """Size of the character. At size 1, the font's em has 0.85 of the height of the picture."""
    shift: float = 0.16
    """Largest offset from the centre, as a share of half the picture's width."""
    clutter: tuple[float, float] = (0.0, 0.18)
    """Strength of the low-frequency blotches behind and over the character."""
    noise: tuple[float, float] = (0.0, 0.10)
    """Standard deviation of the pixel noise."""


Bands = Literal["colour", "infrared", "grey"]

Rendition = Literal["photo", "sketch", "poster", "cloudy"]
"""How a scene is shown: as a photograph, in pencil, printed in other inks, or half hidden by clouds."""


WORLD_VERSION = 1
"""Part of every drawn dataset's identity. A change of any picture raises it."""

SIZES: dict[str, int] = {"train": 1000, "test": 600}
VARIANT_SIZES: dict[str, int] = {"train": 0, "test": 480}

Split = Literal["train", "test"]


@dataclass(frozen=True)
class GlyphTask:
    """A drawn classification task: name the character, its kind or its ink."""

    name: str
    class_names: tuple[str, ...]
    asks: Literal["character", "kind", "ink"]
    kinds: tuple[Kind, ...] = KINDS
    """The kinds of characters that appear."""
    hand: Hand = field(default_factory=Hand)
    palette: Literal["any", "printed"] = "any"
    """Colours of character and background. ``any``: two different colours; ``printed``: dark on light."""
    copy: float = 0.5
    """Strength of the traces of a worn photocopier, see ``camera_styles.photocopy``."""


@dataclass(frozen=True)
class AerialTask:
    """A drawn classification task: name the aerial scene."""

    name: str
    class_names: tuple[str, ...]
    bands: Bands = "colour"
    pixels: int = 32
    """Width of the camera's sensor in pixels. A width of less than 32 blurs the picture."""
    haze: float = 0.7
    """Strength of the haze."""
    rendition: Rendition = "photo"


ToyTask = GlyphTask | AerialTask

CALM = Hand(clutter=(0.0, 0.08), noise=(0.0, 0.06), shift=0.1)
TILTED = Hand(tilt=(0.35, 0.75), clutter=(0.0, 0.08), noise=(0.0, 0.06), shift=0.1)
ROUGH = Hand(clutter=(0.15, 0.4), noise=(0.1, 0.25))

LAND = (
    "forest", "meadow", "desert", "lake", "river", "road", "village", "warehouse", "railway", "orchard",
    "beach", "stadium",
)  # fmt: skip
INFRARED_SCENES = (
    "forest", "desert", "ploughed field", "vegetable field", "irrigation circle", "lake", "river", "road",
    "solar farm", "village",
)  # fmt: skip
COARSE_SCENES = (
    "forest", "sea", "beach", "river", "roundabout", "runway", "tank farm", "stadium", "snowfield", "wheat field",
)  # fmt: skip

_TRAINABLE: tuple[ToyTask, ...] = (
    GlyphTask("glyph-digits", DIGITS, "character", ("digit",)),
    GlyphTask("glyph-tilted-digits", DIGITS, "character", ("digit",), TILTED),
    GlyphTask("glyph-capitals", LETTERS, "character", ("upper",), CALM, "printed"),
    GlyphTask("glyph-small-letters", LETTERS, "character", ("lower",), CALM),
    GlyphTask("glyph-greek", GREEK, "character", ("greek",), CALM, "printed"),
    GlyphTask("glyph-inks", INK_NAMES[:8], "ink", KINDS, ROUGH),
    GlyphTask("glyph-kinds", KIND_NAMES, "kind", KINDS, CALM, "printed"),
    AerialTask("aerial-land", LAND),
    AerialTask("aerial-water", ("sea", "lake", "island", "river", "beach", "harbour", "canal", "bridge")),
    AerialTask(
        "aerial-traffic", ("road", "crossroads", "roundabout", "railway", "runway", "parking lot", "bridge", "canal")
    ),
    AerialTask(
        "aerial-crops",
        ("wheat field", "ploughed field", "vegetable field", "flower field", "orchard", "irrigation circle", "meadow"),
    ),
    AerialTask("aerial-roofs", tuple(f"village with {colour} roofs" for colour in ROOFS)),
    AerialTask("aerial-seasons", tuple(f"{scene} in {season}" for scene in ("forest", "meadow") for season in SEASONS)),
    AerialTask("aerial-infrared", INFRARED_SCENES, bands="infrared"),
    AerialTask("aerial-coarse", COARSE_SCENES, bands="grey", pixels=12),
)
_LAND_VARIANTS: tuple[AerialTask, ...] = (
    # ``aerial-land`` with other pictures: the scores on the two tasks differ by chance only.
    AerialTask("aerial-land-again", LAND),
    AerialTask("aerial-land-sketch", LAND, haze=0.35, rendition="sketch"),
    # Other inks change the colours, so scenes that are known by their colour alone are left out.
    AerialTask(
        "aerial-land-poster",
        ("lake", "river", "road", "village", "warehouse", "railway", "orchard", "stadium"),
        rendition="poster",
    ),
    # Clouds hide parts of a picture, so scenes that are known by a single line are left out.
    AerialTask(
        "aerial-land-cloudy",
        ("forest", "meadow", "desert", "village", "warehouse", "orchard", "beach", "stadium"),
        rendition="cloudy",
    ),
)

TASKS: dict[str, ToyTask] = {task.name: task for task in (*_TRAINABLE, *_LAND_VARIANTS)}

VARIANTS: dict[str, str] = {task.name: "aerial-land" for task in _LAND_VARIANTS}
"""Name of a variant -> the task from which its class names are taken."""

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Labels = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def sizes(task_name: str) -> dict[str, int]:
    """Return the number of pictures in each split of a task."""
    return VARIANT_SIZES if task_name in VARIANTS else SIZES
