"""Three small image folders and their catalog. A grid on them takes seconds, one on the drawn datasets minutes."""

from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from bolt.seeds import numpy_generator

WORDS = {
    "amounts": ("one", "two", "three", "four"),
    "shades": ("red", "green", "blue", "yellow"),
    "grounds": ("forest", "desert", "lake", "village"),
}
"""Dataset -> its classes."""
TRAIN, TEST = 10, 5
"""Images of each class in the two splits."""
DATASETS = tuple(WORDS)


def write_image_folders(folder: Path) -> list[str]:
    """Write the images and the catalog ``own.yaml`` into ``folder`` if they are missing.

    An image is noise around the brightness of its class. Returns a command's options for the catalog and the images.
    """
    catalog = folder / "own.yaml"
    if not catalog.exists():
        for dataset, words in WORDS.items():
            for label, word in enumerate(words):
                _write_class(folder / "images" / dataset, word, brightness=40 + 50 * label)
        catalog.write_text(yaml.safe_dump({"domains": {"own": {"title": "Own"}}, "datasets": _entries()}))
    return ["--catalog", str(catalog), "--data-root", str(folder / "images")]


def _write_class(dataset: Path, word: str, brightness: int) -> None:
    for split, count in (("train", TRAIN), ("test", TEST)):
        (dataset / split / word).mkdir(parents=True)
        for number in range(count):
            draw = numpy_generator("image folders", dataset.name, word, split, number)
            pixels = np.clip(draw.normal(brightness, 30, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(dataset / split / word / f"{number}.png")


def _entries() -> dict[str, object]:
    return {
        name: {
            "title": name.capitalize(),
            "domain": "own",
            "route": {"kind": "folder", "folder": name},
            "prompts": ["a picture of {}."],
            "classes": len(words),
            "sizes": {"train": TRAIN * len(words), "test": TEST * len(words)},
            "licence": "none",
        }
        for name, words in WORDS.items()
    }
