"""Read datasets that need no files: the drawn world, and the digits that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import RouteContents, array_part


def read_toy(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Draw a task of the demo's world."""
    from orchestrator.drawn_world.drawing import draw_split
    from orchestrator.drawn_world.tasks import TASKS

    task: str = entry.route.task  # type: ignore[union-attr]
    parts = {}
    for split in ("train", "test"):
        pixels, labels = draw_split(task, split)
        parts[split] = array_part(pixels, labels, f"{task}/{split}")
    return TASKS[task].class_names, parts


def read_sklearn(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Load the handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    ink = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # stored as 0 to 16, white on black
    pixels, labels = np.repeat(ink[..., None], 3, axis=-1), digits.target.astype(np.int64)
    return [str(digit) for digit in range(10)], {"all": array_part(pixels, labels, entry.name)}
