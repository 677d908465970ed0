"""Resizes a batch of crops on the device that holds the images, bit-identical to torchvision's resize.

On one CPU thread a view of a photograph takes 0.8 ms, nearly all of it for resizing. A GPU would wait 22 ms for a batch
of 32 such views. So this module resizes a whole batch by two batched matrix products.

torchvision resizes uint8 images (bicubic, antialiased) in two passes, across and then down, with integer weights. For
each output position, it normalises the weights of the cubic filter (a = -0.5, with a wider support when the image
shrinks), multiplies them by a power of two, 2^p, and rounds them. The exponent p is chosen for each crop: the largest,
up to 22, for which all rounded weights stay below 2^15. A pass adds 2^(p-1) to the weighted sum, shifts the sum by p
bits and clamps it to 0 ... 255. All sums are integers below 2^53, so float64 computes them exactly, in any order.

No function here waits for the device or copies pixels to it. For images that are on a GPU, only the rectangles of the
crops are sent, a few numbers per image.

Shape legend: B crops, S side of the views, n length of a crop's side, L longest side in the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bolt.clip.augment import Box

_FILTER_RADIUS = 2.0
_MOST_BITS = 22
_WEIGHT_LIMIT = 2.0**15
_MOST_PIXELS = 32 * 3 * 600 * 600
"""Largest number of values in a batch of padded crops, at three values for each pixel. A larger batch is resized in
parts. So the crops take at most 280 MB in float64, unless one crop alone takes more. The results do not depend on the
parts."""


def resize_crops(images: Sequence[Tensor], boxes: Sequence[Box], size: int) -> Tensor:
    """Crop each image to its box, resize the crop and mirror it if the box says so: uint8 (B, 3, S, S).

    The pixels are those of :func:`bolt.clip.augment.crop_view` for each image.

    Args:
        images: uint8 (3, H, W) each, all on one device.
        boxes: the rectangle of each crop.
        size: side S of the resized crops.
    """
    most = max(1, _MOST_PIXELS // (3 * max(box.height for box in boxes) * max(box.width for box in boxes)))
    parts = [slice(start, start + most) for start in range(0, len(boxes), most)]
    return torch.cat([_resize_together(images[part], boxes[part], size) for part in parts])


def _resize_together(images: Sequence[Tensor], boxes: Sequence[Box], size: int) -> Tensor:
    device = images[0].device
    longest = max(box.height for box in boxes), max(box.width for box in boxes)
    crops_B3HW = torch.zeros(len(boxes), 3, *longest, dtype=torch.uint8, device=device)
    for crop, image, box in zip(crops_B3HW, images, boxes, strict=True):
        part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
        crop[:, : box.height, : box.width].copy_(part, non_blocking=True)
    sides = torch.tensor([(box.height, box.width, box.mirrored) for box in boxes], dtype=torch.float64)
    sides_3B = (sides.pin_memory() if device.type == "cuda" else sides).to(device, non_blocking=True).T
    down_BSL, down_bits_B = integer_weights(sides_3B[0], longest[0], size)
    across_BSL, across_bits_B = integer_weights(sides_3B[1], longest[1], size)
    across_BSL = torch.where(sides_3B[2, :, None, None] > 0, across_BSL.flip(1), across_BSL)
    narrow_B3LS = _shift(crops_B3HW.double() @ across_BSL.mT[:, None], across_bits_B)
    return _shift(down_BSL[:, None] @ narrow_B3LS, down_bits_B).to(torch.uint8)


def integer_weights(lengths_B: Tensor, longest: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the integer weights with which one pass resizes each crop, (B, S, L), and an exponent per crop, (B,).

    Weights and exponents are float64. The weights are those of the filter, multiplied by 2^exponent and rounded (see
    the top of this module).

    Args:
        lengths_B: side length n of each crop, float64. A crop's weights are zero beyond n.
        longest: the longest length L.
        size: side S of the resized crops.
    """
    scale_B11 = (lengths_B / size)[:, None, None]
    stretch_B11 = scale_B11.clamp_min(1)
    radius_B11 = _FILTER_RADIUS * stretch_B11
    place_S1 = torch.arange(size, dtype=torch.float64, device=lengths_B.device)[:, None]
    pixel_L = torch.arange(longest, dtype=torch.float64, device=lengths_B.device)
    centre_BS1 = scale_B11 * (place_S1 + 0.5)
    first_BS1 = (centre_BS1 - radius_B11 + 0.5).trunc().clamp_min(0)
    end_BS1 = torch.minimum((centre_BS1 + radius_B11 + 0.5).trunc(), lengths_B[:, None, None])
    weights_BSL = _cubic((pixel_L + 0.5 - centre_BS1) * (1 / stretch_B11))
    weights_BSL = weights_BSL * ((pixel_L >= first_BS1) & (pixel_L < end_BS1))
    weights_BSL = weights_BSL / weights_BSL.sum(dim=-1, keepdim=True)
    powers_P = 2.0 ** torch.arange(1, _MOST_BITS + 1, dtype=torch.float64, device=lengths_B.device)
    fits_BP = (0.5 + weights_BSL.amax(dim=(1, 2))[:, None] * powers_P).floor() < _WEIGHT_LIMIT
    bits_B = fits_BP.sum(dim=1).double()
    scaled_BSL = weights_BSL * 2.0 ** bits_B[:, None, None]
    return (scaled_BSL + 0.5 * scaled_BSL.sign()).trunc(), bits_B  # rounds halves away from zero


def _cubic(distance: Tensor) -> Tensor:
    """Apply the cubic convolution filter with a = -0.5 (Keys, 1981)."""
    x, a = distance.abs(), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < _FILTER_RADIUS, far, 0.0))


def _shift(sums: Tensor, bits_B: Tensor) -> Tensor:
    """Divide the sums of each crop by 2 to the power of the crop's ``bits_B``, round halves up, clamp to 0 ... 255."""
    unit_B111 = 2.0 ** bits_B[:, None, None, None]
    return ((sums + unit_B111 / 2) / unit_B111).floor().clamp(0, 255)
