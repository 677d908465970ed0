"""Small drawn JPEG images: each class has its colour and shape, each image its position and brightness."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from bolt.seeds import numpy_generator

COLOURS = {"red_mug": (200, 40, 30), "BlueBottle": (30, 60, 200), "03-green-plate": (40, 170, 60)}
CLASSES = tuple(COLOURS)
ORIENTATION = 0x0112


def photograph(name: str, number: int, size: tuple[int, int] = (80, 60)) -> Image.Image:
    """Return one image of a class."""
    draw = numpy_generator("photograph", name, number)
    light = draw.integers(150, 230)
    pixels = np.clip(draw.normal(light, 12, (size[1], size[0], 3)), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    left, top = draw.integers(5, 30), draw.integers(5, 20)
    wide, high = draw.integers(28, 45), draw.integers(22, 36)
    box = (int(left), int(top), int(left + wide), int(top + high))
    pen = ImageDraw.Draw(image)
    (pen.ellipse if CLASSES.index(name) % 2 else pen.rectangle)(box, fill=COLOURS[name])
    return image


def write_photographs(folder: Path, per_class: int = 10, first: int = 0) -> None:
    """Write images as ``folder/CLASS/NNN.jpg`` for every class."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + per_class):
            photograph(name, number).save(folder / name / f"{number:03}.jpg", quality=90)


def break_file(path: Path) -> None:
    """Truncate a file to half its size, as a full memory card or a lost connection does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
