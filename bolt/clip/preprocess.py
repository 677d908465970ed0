"""Image preprocessing: from an image in any mode to the normalised input of an image tower.

For RGB and grey images the result is bit-identical to open_clip's evaluation transform. Images of other modes are first
converted to RGB or grey at their full size:

=====================  ===============================================================================================
palette, 1-bit         to RGB or grey. Pillow would resize the palette indices, by nearest neighbour
CMYK, YCbCr, Lab, HSV  by Pillow's conversion, as torchvision's folder loader does
transparent            composited on white. Colours under transparent pixels are arbitrary; open_clip shows them or
                       black, depending on whether the image had to be resized. An opaque alpha channel is dropped
16-bit grey            v / 257, rounded. Pillow would clip at 255, which makes most images white
32-bit integers        like 16-bit grey if all values are in 0 to 65535, else an error: their range is unknown
floating point         255 v, rounded, if all values are in 0 to 1, else an error
several frames         the first frame
EXIF orientation       applied where a model predicts and to users' own images. Ignored for a benchmark's, whose
                       published numbers were measured without it. (Pillow always applies that of a TIFF)
=====================  ===============================================================================================

A truncated image is an error, and so is an image beyond Pillow's limit for decompression bombs.

Shape legend: B images, H, W height and width, S side of the tower's images.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray
    from torch import Tensor

UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""The exceptions that Pillow raises for an image that is damaged, truncated or too large."""

_MAX_16_BIT = 65535


def evaluation_pixels(image: Image.Image, size: int, *, exif_rotation: bool = False) -> NDArray[np.uint8]:
    """Resize the shortest side (bicubic), crop the centre and convert to RGB, as open_clip does: uint8 (3, S, S)."""
    found = to_rgb_or_grey(image, exif_rotation)
    height, width = resized_sides(found.height, found.width, size)
    left, top = centre(width, size), centre(height, size)
    resized = found.resize((width, height), Image.Resampling.BICUBIC)
    return rgb_pixels(resized.crop((left, top, left + size, top + size)))


def resized_sides(height: int, width: int, size: int) -> tuple[int, int]:
    """Return height and width with the shortest side at ``size``; the other is rounded down, as by torchvision."""
    short = min(height, width)
    return size * height // short, size * width // short


def centre(length: int, size: int) -> int:
    """Return the first of the middle ``size`` of ``length`` pixels; halves round to even, as by torchvision."""
    return round((length - size) / 2)


def rgb_pixels(image: Image.Image, *, exif_rotation: bool = False) -> NDArray[np.uint8]:
    """Open an image in RGB at its own size: uint8 (3, H, W)."""
    rgb = to_rgb_or_grey(image, exif_rotation).convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def normalise(pixels_B3SS: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> Tensor:
    """Convert uint8 pixels (B, 3, S, S) to float32 tower input on a device, normalised per channel as in CLIP."""
    from bolt.clip.transfer import to_device  # imports PyTorch, which decoding does without

    images = to_device(pixels_B3SS, device).float().div_(255)
    mean_311, std_311 = (_per_channel(tuple(values), images.device) for values in (mean, std))
    return images.sub_(mean_311).div_(std_311)


@lru_cache(maxsize=16)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values per channel, (3, 1, 1), copied to the device once."""
    import torch

    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(3, 1, 1)


def open_image(image: Image.Image | str | Path) -> Image.Image:
    """Open an image file; an image that is open already is returned as it is. Raises one of ``UNREADABLE``."""
    if isinstance(image, Image.Image):
        return image
    with Image.open(image) as found:
        found.load()
        return found


def open_named(image: Image.Image | str | Path) -> Image.Image:
    """Open an image as :func:`open_image` does; the ``OSError`` for a damaged file names its path."""
    try:
        return open_image(image)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise OSError(f"{image} cannot be decoded: {error}") from error


def to_rgb_or_grey(image: Image.Image, exif_rotation: bool = False) -> Image.Image:
    """Convert an image to mode ``RGB`` or ``L`` by the rules of this module. Raises one of ``UNREADABLE``."""
    if exif_rotation:
        image = _upright(image)
    if image.mode.startswith(("I", "F")):
        return _scale_to_8_bit(np.asarray(image))
    if image.has_transparency_data:
        return _composite_on_white(image)
    if image.mode in ("RGB", "L"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def is_turned(image: Image.Image) -> bool:
    """Whether the EXIF orientation asks for a turn; tags beyond 2 to 8, and damaged ones, ask for none."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except UNREADABLE:
        return False


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image by its EXIF orientation; one whose metadata is damaged stays as it is."""
    try:
        return ImageOps.exif_transpose(image)
    except UNREADABLE:
        return image


def _scale_to_8_bit(values_HW: NDArray[np.generic]) -> Image.Image:
    """Convert 16-bit grey, 32-bit integers or floating point values to 8-bit grey."""
    values = values_HW.astype(np.float64)
    largest = _MAX_16_BIT if np.issubdtype(values_HW.dtype, np.integer) else 1.0
    low, high = float(values.min()), float(values.max())
    if not 0 <= low <= high <= largest:  # NaN included
        raise ValueError(
            f"{values_HW.dtype} pixels range from {low:g} to {high:g}; the allowed range is 0 to {largest:g}"
        )
    return Image.fromarray(np.rint(values * (255 / largest)).astype(np.uint8))


def _composite_on_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # Pillow cannot convert it to RGBA directly
        image = image.convert("LA")
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
