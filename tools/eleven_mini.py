"""Draw a miniature of the field's few-shot benchmark: its folders, split files and lists, with small drawn images.

``python -m tools.eleven_mini ROOT`` makes eleven datasets and four variants of ImageNet. The grid ``eleven-mini`` uses
them to show every track of the benchmark without the benchmark's images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.catalog import load_catalog
from orchestrator.catalog.routes import DasslRoute
from orchestrator.datasets.routes.class_folders import wnids
from orchestrator.drawn_world.drawing import draw_split
from orchestrator.drawn_world.tasks import TASKS as DRAWN

TASKS = {
    "eleven_caltech101": "glyph-kinds",
    "eleven_oxford_pets": "aerial-seasons",
    "eleven_stanford_cars": "glyph-digits",
    "eleven_flowers102": "glyph-inks",
    "eleven_food101": "aerial-land",
    "eleven_fgvc_aircraft": "glyph-tilted-digits",
    "eleven_sun397": "aerial-traffic",
    "eleven_dtd": "aerial-water",
    "eleven_eurosat": "aerial-crops",
    "eleven_ucf101": "aerial-roofs",
}
"""Dataset of the benchmark -> the drawn task whose images and class words replace those of the dataset."""

SIZES = {"train": 6, "val": 3, "test": 8}
"""Part -> number of images per class."""


def make(root: Path, names: Sequence[str] = tuple(TASKS), imagenet_classes: int = 1000) -> None:
    """Write the named datasets, and the first classes of ImageNet and its variants, below ``root``."""
    catalog = load_catalog()
    for name in names:
        task = TASKS[name]
        route, class_names, drawn = catalog.dataset(name).route, DRAWN[task].class_names, draw_split(task, "train")
        assert isinstance(route, DasslRoute)
        assert route.file is not None
        folder = root / route.folders[0]
        rows: dict[str, list[tuple[str, int, str]]] = {part: [] for part in SIZES}
        for label, word in enumerate(class_names):
            images = _images(*drawn, label)
            for part, size in SIZES.items():
                for number in range(size):
                    path = (
                        f"{label:03}_{part}_{number}.jpg" if "lists" in route.layout else f"{word}/{part}_{number}.jpg"
                    )
                    _save(next(images), folder / (route.images or ".") / path)
                    rows[part].append((path, label, word))
        if route.layout == "zhou_split":
            (folder / route.file).write_text(json.dumps(rows, indent=4), encoding="utf-8")
        else:
            (folder / "variants.txt").write_text("\n".join(class_names) + "\n", encoding="utf-8")
            for part, listed in rows.items():
                lines = "".join(f"{path.removesuffix('.jpg')} {word}\n" for path, _, word in listed)
                (folder / route.file.format(part=part)).write_text(lines, encoding="utf-8")
    generator = np.random.default_rng(0)
    for number, wnid in enumerate(wnids()[:imagenet_classes]):
        places = ["imagenet/images/train", "imagenet/images/val", "imagenet-sketch/images"]
        places += ["imagenet-adversarial/imagenet-a", "imagenet-rendition/imagenet-r"] if number < 200 else []
        folders = [root / place / wnid for place in places]
        folders.append(root / f"imagenetv2/imagenetv2-matched-frequency-format-val/{number}")
        for folder in folders:
            pixels = generator.integers(0, 256, (2, 2, 3), dtype=np.uint8)
            _save(Image.fromarray(pixels).resize((32, 32)), folder / "0.jpg")


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.int64], label: int) -> Iterator[Image.Image]:
    """Return an endless iterator over the images of a class."""
    return map(Image.fromarray, cycle(pixels[labels == label]))


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert("RGB").save(path, quality=90)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
