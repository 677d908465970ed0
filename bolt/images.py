"""From a picture to what a tower sees: the one evaluation transform of the benchmark, its library and its servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


def evaluation_pixels(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """uint8 (3, size, size): resize, centre-crop and RGB in the order open_clip does them."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    resized = F.resize(image, size, interpolation=InterpolationMode.BICUBIC)
    return rgb_pixels(F.center_crop(resized, [size, size]))


def rgb_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """uint8 (3, H, W): the image in RGB at its own size."""
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def normalised(pixels_B3SS: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> Tensor:
    """uint8 pixels (B, 3, S, S) -> float32 tower input on a device; the steps of CLIP's own, per channel."""
    images = pixels_B3SS.to(device, non_blocking=True).float().div_(255)
    mean_311, std_311 = (images.new_tensor(values).view(3, 1, 1) for values in (mean, std))
    return images.sub_(mean_311).div_(std_311)
