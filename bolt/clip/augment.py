"""Views of an image: CLIP's evaluation transform (view 0) and random resized crops (views 1, 2, ...).

The parameters of a random crop depend on (dataset, seed, view, index) only, so every method sees the same pixels in
every process. All functions work on uint8 tensors (3, H, W).

The pixels are bit-identical to those of torchvision's ``resize`` and ``center_crop``. This module does not import
torchvision, because the import takes a worker one second and 160 MiB.
"""

import math
import random
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from bolt.clip.input_size import InputSize, Interpolation
from bolt.clip.preprocess import centre
from bolt.seeds import keyed_seed

_ASPECT_RATIOS = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class Crop:
    """Distribution of random crops.

    Attributes:
        smallest, largest: range of a crop's share of the image area.
        flip: probability that a crop is mirrored.
    """

    smallest: float = 0.5
    largest: float = 1.0
    flip: float = 0.5


SUPPORT_CROP = Crop()
"""Crops for few-shot training: 50 to 100 % of the image area, half of them mirrored."""

SOURCE_CROP = Crop(smallest=0.9, flip=0.0)
"""Crops for fine-tuning source models, as in open_clip: 90 to 100 % of the image area, none mirrored."""


@dataclass(frozen=True)
class Box:
    """One drawn crop: a rectangle of the image in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool


def evaluation_view(image_3HW: Tensor, size: InputSize) -> Tensor:
    """Return a square view of an image, resized with antialiasing: uint8 (3, S, S).

    ``size.resize`` says how the image becomes a square. An (S, S) image is returned unchanged.
    """
    height, width = image_3HW.shape[-2:]
    side = size.side
    if height == width == side:
        return image_3HW
    resized_height, resized_width = size.resized(height, width)
    resized = _resize(image_3HW, resized_height, resized_width, size.interpolation)
    top, left = centre(resized_height, side), centre(resized_width, side)
    if min(resized_height, resized_width) < side:
        edges = (-left, side - resized_width + left, -top, side - resized_height + top)
        return F.pad(resized, [max(0, edge) for edge in edges])
    return resized[:, top : top + side, left : left + side].contiguous()


def augmented_view(
    image_3HW: Tensor, size: int, dataset: str, seed: int, view: int, index: int, crop: Crop = SUPPORT_CROP
) -> Tensor:
    """Return random crop number ``view`` (from 1) of a split's image number ``index``: uint8 (3, size, size)."""
    height, width = image_3HW.shape[-2:]
    return crop_view(image_3HW, view_box(height, width, dataset, seed, view, index, crop), size)


def crop_view(image_3HW: Tensor, box: Box, size: int) -> Tensor:
    """Crop the image to the box, resize it, and mirror it if the box says so: uint8 (3, size, size)."""
    part = image_3HW[:, box.top : box.top + box.height, box.left : box.left + box.width]
    resized = _resize(part, size, size)
    return resized.flip(-1) if box.mirrored else resized


def view_box(height: int, width: int, dataset: str, seed: int, view: int, index: int, crop: Crop = SUPPORT_CROP) -> Box:
    """Return the rectangle that random crop number ``view`` (from 1) cuts from image number ``index`` of a split."""
    return draw_box(height, width, keyed_seed("view", dataset, seed, view, index), crop)


def draw_box(height: int, width: int, key: int, crop: Crop) -> Box:
    """Draw a random resized crop by torchvision's algorithm, from a generator seeded by ``key``."""
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
    # No crop of an allowed aspect ratio fits this long image: take the largest centred box of an allowed ratio.
    box_width = min(width, round(height * _ASPECT_RATIOS[1]))
    box_height = min(height, round(width / _ASPECT_RATIOS[0]))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width, mirrored)


def _resize(image_3HW: Tensor, height: int, width: int, interpolation: Interpolation = "bicubic") -> Tensor:
    if image_3HW.shape[-2:] == (height, width):
        return image_3HW
    return F.interpolate(image_3HW[None], (height, width), mode=interpolation, antialias=True)[0]
