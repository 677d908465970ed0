"""Views of the support and batches of crops have torchvision's bits, and depend on a key only."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.v2 import functional

from bolt.clip.augment import (
    SOURCE_CROP,
    SUPPORT_CROP,
    Box,
    Crop,
    augmented_view,
    crop_view,
    draw_box,
    evaluation_view,
    view_box,
)
from bolt.clip.batched_resize import resize_crops
from bolt.clip.input_size import InputSize
from tests.helpers.synchronisation import Waits


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def gradient(height: int, width: int) -> Tensor:
    rows, columns = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)
    planes = [rows.expand(height, width), columns.expand(height, width), rows * columns]
    return (255 * torch.stack(planes)).to(torch.uint8)


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize("sides", [(375, 500), (224, 224), (40, 31), (31, 200), (600, 601), (225, 224), (1, 7)])
def test_pixels_have_the_bits_of_torchvision(sides: tuple[int, int], size: int) -> None:
    image = noise(*sides)
    resized = functional.resize(image, [size], functional.InterpolationMode.BICUBIC, antialias=True)
    assert torch.equal(evaluation_view(image, InputSize(size)), functional.center_crop(resized, [size, size]))
    for index in range(5):
        box = view_box(*sides, "d", 0, 1, index)
        part = functional.crop(image, box.top, box.left, box.height, box.width)
        expected = functional.resize(part, [size, size], functional.InterpolationMode.BICUBIC, antialias=True)
        found = augmented_view(image, size, "d", 0, 1, index)
        assert torch.equal(found, expected.flip(-1) if box.mirrored else expected)


def test_views_repeat_and_depend_on_every_axis() -> None:
    image = noise(40, 40)

    def view(dataset: str = "d", seed: int = 0, view: int = 1, index: int = 5) -> tuple[int, ...]:
        return tuple(augmented_view(image, 32, dataset, seed, view, index).flatten().tolist())

    assert view() == view()
    assert len({view(), view(dataset="e"), view(seed=1), view(view=2), view(index=6)}) == 5


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**62), st.sampled_from([SUPPORT_CROP, SOURCE_CROP]))
@settings(max_examples=200, deadline=None)
def test_a_box_lies_in_the_image(height: int, width: int, key: int, crop: Crop) -> None:
    box = draw_box(height, width, key, crop)
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width


def test_half_of_the_boxes_of_a_support_are_mirrored_and_none_of_a_source() -> None:
    assert 0.46 < np.mean([draw_box(100, 100, key, SUPPORT_CROP).mirrored for key in range(2000)]) < 0.54
    assert not any(draw_box(100, 100, key, SOURCE_CROP).mirrored for key in range(100))


def test_boxes_are_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    image = torch.empty(3, 600, 1000)
    theirs = np.array([transforms.RandomResizedCrop.get_params(image, [0.5, 1], [3 / 4, 4 / 3]) for _ in range(3000)])
    drawn = [draw_box(600, 1000, key, SUPPORT_CROP) for key in range(3000)]
    ours = np.array([[box.top, box.left, box.height, box.width] for box in drawn])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=4)
    # If every box lay in the middle, the tops would differ by 5.6 and the left sides by 71.
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), atol=4)


def test_very_long_images_get_the_largest_allowed_box() -> None:
    box = draw_box(10, 1000, 0, SUPPORT_CROP)
    assert (box.height, box.width, box.top) == (10, 13, 0)
    box = draw_box(1000, 10, 0, SUPPORT_CROP)
    assert (box.height, box.width, box.left) == (13, 10, 0)


SIDES = [
    (375, 500), (448, 598), (256, 256), (32, 32), (28, 28), (600, 600), (500, 333), (224, 224), (96, 640), (40, 31),
]  # fmt: skip


@pytest.mark.parametrize("crop", [SUPPORT_CROP, SOURCE_CROP], ids=["support", "source"])
@pytest.mark.parametrize("size", [32, 224])
def test_a_batch_of_crops_equals_torchvision_bit_for_bit(crop: Crop, size: int) -> None:
    """One batch has photographs, squares, images smaller than the view, and images of the size of the view."""
    images = [noise(*sides, seed=number) for number, sides in enumerate(SIDES)]
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


def test_nothing_waits_for_the_device() -> None:
    """No operation reads a value back to the host."""
    boxes = [view_box(*sides, "made-up", 1, 2, 3) for sides in SIDES[:3]]
    with Waits() as waits:
        images = [waits.copied(noise(*sides)) for sides in SIDES[:3]]
        waits.in_step = True
        resize_crops(images, boxes, 32)
    assert not waits.found
