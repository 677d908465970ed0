"""From a picture to what a tower sees: the one evaluation transform of the benchmark, its library and its servers.

RGB and grey images become what open_clip's evaluation transform makes of them, bit for bit, up to normalisation. That
transform has no good answer for the other modes, so they are first made RGB or grey, at their full size:

=====================  ===============================================================================================
palette, 1-bit         their colours; Pillow would resize the indices, and by nearest neighbour
CMYK, YCbCr, Lab, HSV  Pillow's conversion, as torchvision's folder loader does before the transform
transparent            laid on white. What lies under transparent pixels is arbitrary, and open_clip shows black or
                       just that, depending on whether the image had to be resized. Opaque alpha changes nothing
16-bit grey            v / 257, rounded; Pillow would clip at 255, which leaves white
32-bit integers        as 16-bit grey if all lie in 0 to 65535, else refused: their range is unknown
floating point         255 v, rounded, if all lie in 0 to 1, else refused
several frames         the first
EXIF orientation       as stored, unless ``exif_rotation``: published numbers were measured without turning. (Of a
                       TIFF, Pillow itself turns the image, for everyone)
=====================  ===============================================================================================

A truncated image is an error, and so is one beyond Pillow's limit for decompression bombs.

Shape legend: B images, H, W height and width, S side of the tower's images.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray
    from torch import Tensor

UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises for an image that is damaged, truncated or refused."""

_MAX_16_BIT = 65535


def evaluation_pixels(image: Image.Image, size: int, *, exif_rotation: bool = False) -> NDArray[np.uint8]:
    """uint8 (3, S, S): shortest side resized (bicubic), centre-cropped, RGB, in the order open_clip does them."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    resized = F.resize(to_rgb_or_grey(image, exif_rotation), size, interpolation=InterpolationMode.BICUBIC)
    return rgb_pixels(F.center_crop(resized, [size, size]))


def rgb_pixels(image: Image.Image, *, exif_rotation: bool = False) -> NDArray[np.uint8]:
    """uint8 (3, H, W): the image in RGB at its own size."""
    rgb = to_rgb_or_grey(image, exif_rotation).convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def normalise(pixels_B3SS: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> Tensor:
    """uint8 pixels (B, 3, S, S) -> float32 tower input on a device; the steps of CLIP's own, per channel."""
    images = pixels_B3SS.to(device, non_blocking=True).float().div_(255)
    mean_311, std_311 = (images.new_tensor(values).view(3, 1, 1) for values in (mean, std))
    return images.sub_(mean_311).div_(std_311)


def open_image(image: Image.Image | str | Path) -> Image.Image:
    """An image, read if it is the path of a file. Raises ``OSError`` for a file that is no whole image."""
    if isinstance(image, Image.Image):
        return image
    with Image.open(image) as found:
        found.load()
        return found


def to_rgb_or_grey(image: Image.Image, exif_rotation: bool = False) -> Image.Image:
    """The image in mode ``RGB`` or ``L``, by the rules above. Raises one of ``UNREADABLE`` when it is refused."""
    if exif_rotation:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _scale_to_8_bit(np.asarray(image))
    if image.has_transparency_data:
        return _composite_on_white(image)
    if image.mode in ("RGB", "L"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _scale_to_8_bit(values_HW: NDArray[np.generic]) -> Image.Image:
    """16-bit grey, 32-bit integers or floating point as 8-bit grey."""
    values = values_HW.astype(np.float64)
    largest = _MAX_16_BIT if np.issubdtype(values_HW.dtype, np.integer) else 1.0
    low, high = float(values.min()), float(values.max())
    if not 0 <= low <= high <= largest:  # NaN included
        raise ValueError(f"{values_HW.dtype} pixels from {low:g} to {high:g}, where 0 to {largest:g} is understood")
    return Image.fromarray(np.rint(values * (255 / largest)).astype(np.uint8))


def _composite_on_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # Pillow knows no direct way
        image = image.convert("LA")
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
