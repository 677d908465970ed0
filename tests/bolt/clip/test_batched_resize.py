"""Views made as matrix products equal torchvision's, bit for bit."""

import pytest
import torch
from torch import Tensor

from bolt.clip.augment import SOURCE_CROP, SUPPORT_CROP, Box, Crop, augmented_view, crop_view, view_box
from bolt.clip.batched_resize import resize_crops
from tests.helpers.synchronisation import synchronising_operations

SIDES = [
    (375, 500),
    (448, 598),
    (256, 256),
    (32, 32),
    (28, 28),
    (600, 600),
    (500, 333),
    (224, 224),
    (96, 640),
    (40, 31),
]


def _image(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("crop", [SUPPORT_CROP, SOURCE_CROP], ids=["support", "source"])
@pytest.mark.parametrize("size", [32, 224])
def test_a_batch_of_crops_equals_torchvision_bit_for_bit(crop: Crop, size: int) -> None:
    """Photographs, squares, images smaller than the view and of its own size, in one batch."""
    images = [_image(*sides, seed=number) for number, sides in enumerate(SIDES)]
    boxes = [view_box(*sides, "made-up", 0, 1, number, crop) for number, sides in enumerate(SIDES)]
    expected = [augmented_view(image, size, "made-up", 0, 1, number, crop=crop) for number, image in enumerate(images)]
    assert torch.equal(resize_crops(images, boxes, size), torch.stack(expected))


@pytest.mark.parametrize("mirrored", [False, True])
def test_extreme_pixels_are_clamped_like_torchvision(mirrored: bool) -> None:
    """A black and white checkerboard makes the cubic filter overshoot on both sides."""
    board = (255 * (torch.arange(64)[:, None] // 4 % 2 ^ torch.arange(80) // 4 % 2)).to(torch.uint8).expand(3, 64, 80)
    boxes = [Box(0, 0, 64, 80, mirrored), Box(3, 5, 17, 60, mirrored), Box(1, 1, 1, 2, mirrored)]
    found = resize_crops([board] * 3, boxes, 48)
    assert torch.equal(found, torch.stack([crop_view(board, box, 48) for box in boxes]))


def test_a_crop_does_not_depend_on_the_rest_of_its_batch() -> None:
    images = [_image(*sides) for sides in SIDES[:4]]
    boxes = [view_box(*sides, "made-up", 1, 2, 3) for sides in SIDES[:4]]
    together = resize_crops(images, boxes, 64)
    alone = [resize_crops([image], [box], 64)[0] for image, box in zip(images, boxes, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_nothing_waits_for_the_device() -> None:
    """No operation reads a value back to the host."""
    images = [_image(*sides) for sides in SIDES[:3]]
    boxes = [view_box(*sides, "made-up", 1, 2, 3) for sides in SIDES[:3]]
    assert not synchronising_operations(lambda: resize_crops(images, boxes, 32))
