"""Draws the pictures of a task: what each picture shows, and how its camera shows it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from orchestrator.drawn_world.pictures import camera_styles, glyphs
from orchestrator.drawn_world.pictures.canvas import SIDE, to_bytes
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom
from orchestrator.drawn_world.pictures.scenes import ALL
from orchestrator.drawn_world.tasks import TASKS, WORLD_VERSION, AerialTask, Bytes, GlyphTask, Labels, Split, sizes
from orchestrator.drawn_world.words import DIGITS, INK_NAMES, Kind

DARK = ("black", "red", "green", "blue", "purple", "brown")
LIGHT = ("white", "yellow", "cyan", "pink")
"""Colours in the palette ``printed``: ``DARK`` for the characters, ``LIGHT`` for the background."""

TELLING: dict[Kind, tuple[str, ...]] = {
    "digit": DIGITS[2:],
    "upper": tuple("abdefghklmnqrt"),
    "lower": tuple("abdefghkmnqrty"),
    "greek": ("beta", "gamma", "delta", "zeta", "theta", "lambda", "mu", "xi", "pi", "sigma", "phi", "psi", "omega"),
}
"""Characters of each kind that look like no character of another kind. A capital O, for example, looks like a zero."""

BANDS: dict[str, Callable[[Tensor], Tensor]] = {"infrared": camera_styles.infrared, "grey": camera_styles.grey}

RENDITIONS: dict[str, Callable[[KeyedRandom, Tensor], Tensor]] = {
    "sketch": camera_styles.sketch,
    "poster": camera_styles.poster,
    "cloudy": camera_styles.cloudy,
}


def draw_split(task_name: str, split: Split) -> tuple[Bytes, Labels]:
    """Return the pictures (N, 32, 32, 3) and the labels (N,) of a split, balanced and shuffled.

    Every call draws the same pictures. N is 0 for the training split of a variant, which is a task with test images
    only.
    """
    task, count = TASKS[task_name], sizes(task_name)[split]
    if count == 0:
        return np.empty((0, SIDE, SIDE, 3), dtype=np.uint8), np.empty(0, dtype=np.int64)
    rng = KeyedRandom("task", WORLD_VERSION, task.name, split)
    order = rng.order(count)
    labels = (order % len(task.class_names)).sort().values
    images = _glyphs(rng, task, labels) if isinstance(task, GlyphTask) else _aerial(rng, task, labels)
    return to_bytes(images[order]), np.asarray(labels[order].numpy(), dtype=np.int64)


def _glyphs(rng: KeyedRandom, task: GlyphTask, labels: Tensor) -> Tensor:
    """Draw characters. Labels decide their character, kind or ink, whichever the task asks for. All else is random."""
    n = len(labels)
    things = glyphs.roll(rng, n, task.kinds)
    if task.palette == "printed":
        dark, light = (torch.tensor([INK_NAMES.index(ink) for ink in inks]) for inks in (DARK, LIGHT))
        things = replace(things, ink=dark[rng.pick(len(dark), n)], paper=light[rng.pick(len(light), n)])
    if task.asks == "character":
        (kind,) = task.kinds
        rows = torch.tensor([glyphs.row_of(kind, name) for name in task.class_names])
        things = replace(things, character=rows[labels])
    elif task.asks == "kind":
        spread = rng.uniform(0.0, 1.0, n)
        for label, kind in enumerate(task.kinds):
            rows = torch.tensor([glyphs.row_of(kind, name) for name in TELLING[kind]])
            mine = labels == label
            things.character[mine] = rows[(spread[mine] * len(rows)).long()]
    else:
        shift = 1 + rng.pick(len(INK_NAMES) - 1, n)
        things = replace(things, ink=labels, paper=(labels + shift) % len(INK_NAMES))
    return camera_styles.photocopy(rng, glyphs.draw(rng, things, task.hand), task.copy)


def _aerial(rng: KeyedRandom, task: AerialTask, labels: Tensor) -> Tensor:
    """Draw a scene for each of the sorted labels, in the task's rendition, and show it through a hazy camera."""
    counts = torch.bincount(labels, minlength=len(task.class_names)).tolist()
    painted = [ALL[name](rng, count) for name, count in zip(task.class_names, counts, strict=True)]
    image = torch.cat(painted).clamp(0.0, 1.0)
    if task.rendition in RENDITIONS:
        image = RENDITIONS[task.rendition](rng, image)
    if task.bands in BANDS:
        image = BANDS[task.bands](image)
    if task.pixels != image.shape[-1]:
        image = camera_styles.coarse(image, task.pixels)
    return camera_styles.haze(rng, image, task.haze)
