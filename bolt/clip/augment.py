"""Views of an image: the evaluation transform, and random crops whose randomness is keyed.

View 0 is CLIP's evaluation transform. View v >= 1 is a random crop, resized, perhaps flipped; its parameters come
from (dataset, seed, view, index) alone, so every method that asks for a view sees the same pixels in any process.
Everything works on uint8 tensors (3, H, W).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from bolt.seeds import keyed_seed

_ASPECT_RATIOS = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class Crop:
    """A family of random views: the share of the image's area a crop keeps, and how often it is mirrored."""

    smallest: float = 0.5
    largest: float = 1.0
    flip: float = 0.5


SUPPORT_CROP = Crop()
"""For few-shot training: crops of half to all of the image, half of them mirrored."""

SOURCE_CROP = Crop(smallest=0.9, flip=0.0)
"""For fine-tuning sources: open_clip's own training transform."""


@dataclass(frozen=True)
class Box:
    """One drawn view: a rectangle of the image in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool


def evaluation_view(image_3HW: Tensor, size: int) -> Tensor:
    """Shortest side resized to ``size`` (bicubic, antialiased), centre cropped: uint8 (3, size, size).

    An image that is that size already is returned untouched.
    """
    height, width = image_3HW.shape[-2:]
    if height == width == size:
        return image_3HW
    short = min(height, width)
    # The long side is rounded down, as by torchvision's Resize.
    resized = _resize(image_3HW, size * height // short, size * width // short)
    return cast(Tensor, transforms.center_crop(resized, [size, size]))


def augmented_view(
    image_3HW: Tensor,
    size: int,
    dataset: str,
    seed: int,
    view: int,
    index: int,
    crop: Crop = SUPPORT_CROP,
) -> Tensor:
    """View ``view`` >= 1 of the image at position ``index`` of its split: uint8 (3, size, size)."""
    height, width = image_3HW.shape[-2:]
    box = draw_box(height, width, keyed_seed("view", dataset, seed, view, index), crop)
    part = image_3HW[:, box.top : box.top + box.height, box.left : box.left + box.width]
    resized = _resize(part, size, size)
    return resized.flip(-1) if box.mirrored else resized


def draw_box(height: int, width: int, key: int, crop: Crop) -> Box:
    """The parameters of a random resized crop, drawn as torchvision draws them but from a generator of its own."""
    generator = random.Random(key)
    mirrored = generator.random() < crop.flip
    low, high = (math.log(ratio) for ratio in _ASPECT_RATIOS)
    for _ in range(_ATTEMPTS):
        area = height * width * (crop.smallest + (crop.largest - crop.smallest) * generator.random())
        ratio = math.exp(low + (high - low) * generator.random())
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(generator.random() * (height - box_height + 1))
            left = int(generator.random() * (width - box_width + 1))
            return Box(top, left, box_height, box_width, mirrored)
    # An image too long for the ratios: the largest centred box within them.
    box_width = min(width, round(height * _ASPECT_RATIOS[1]))
    box_height = min(height, round(width / _ASPECT_RATIOS[0]))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width, mirrored)


def _resize(image_3HW: Tensor, height: int, width: int) -> Tensor:
    resized = transforms.resize(image_3HW, [height, width], InterpolationMode.BICUBIC, antialias=True)
    return cast(Tensor, resized)
