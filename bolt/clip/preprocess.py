"""Image preprocessing: from an open image to the normalised input of an image tower.

For RGB and grey images the pixels are bit-identical to those of open_clip's evaluation transform.
:mod:`bolt.clip.image_files` says how other images become RGB or grey.

Shape legend: B images, H, W height and width, S side of the tower's images.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from bolt.clip.image_files import open_image as open_image  # scripts of users import it from here
from bolt.clip.image_files import to_rgb_or_grey
from bolt.clip.input_size import InputSize

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


def evaluation_pixels(image: Image.Image, size: InputSize) -> NDArray[np.uint8]:
    """Resize an image, crop or pad it to a square, and convert it to RGB, as open_clip does: uint8 (3, S, S)."""
    found = to_rgb_or_grey(image)
    height, width = size.resized(found.height, found.width)
    resample = Image.Resampling.BILINEAR if size.interpolation == "bilinear" else Image.Resampling.BICUBIC
    resized = found.resize((width, height), resample)
    left, top = centre(width, size.side), centre(height, size.side)
    return rgb_pixels(resized.crop((left, top, left + size.side, top + size.side)))


def centre(length: int, size: int) -> int:
    """Return the first pixel of a window that is centred along one side of an image.

    If the window is longer than the side, the result is negative: -3 means that three pixels are to be added in front.

    A half is rounded to the even number, as in torchvision. If an odd number of pixels has to be added, the extra pixel
    is added after the image, as in open_clip.

    Args:
        length: length of the image's side, in pixels.
        size: length of the window, in pixels.
    """
    return round((length - size) / 2) if length >= size else -((size - length) // 2)


def rgb_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Convert an image to RGB at its own size: uint8 (3, H, W)."""
    rgb = to_rgb_or_grey(image).convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def check_pixels(pixels_B3SS: object, side: int) -> None:
    """Raise ``TypeError`` for anything but a tensor of uint8 pixels (B, 3, side, side).

    Values from 0 to 1 would look almost black. Another height and width with as many patches would give features
    without an error.
    """
    kind, shape = (getattr(pixels_B3SS, name, "") for name in ("dtype", "shape"))
    if str(kind) != "torch.uint8" or tuple(shape)[1:] != (3, side, side):
        given = f"{type(pixels_B3SS).__name__} {kind} {(*shape,)}"
        what = f"pixels are a torch.Tensor of uint8 (B, 3, {side}, {side}), from 0 to 255, not {given}"
        raise TypeError(f"{what}; bolt.adapt and Model.predict take images of other sizes in a list")


def normalise(pixels_B3SS: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> Tensor:
    """Convert uint8 pixels (B, 3, S, S) to the float32 input of a tower on a device, normalised per channel."""
    from bolt.clip.transfer import to_device

    images = to_device(pixels_B3SS, device).float().div_(255)
    mean_311, std_311 = (_per_channel(tuple(values), images.device) for values in (mean, std))
    return images.sub_(mean_311).div_(std_311)


@lru_cache(maxsize=16)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one value per channel, (3, 1, 1), on a device. The cache avoids a copy for every batch."""
    import torch

    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(3, 1, 1)
