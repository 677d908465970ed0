"""Views that are made on the device equal those of the host."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bolt.clip.input_size import InputSize
from orchestrator.artifacts.views import DeviceImages, Views
from orchestrator.datasets.images import Images

SHAPES = [(40, 60), (32, 32), (75, 50), (28, 28)]


@pytest.fixture
def images() -> Images:
    rng = np.random.default_rng(0)
    shapes = np.array(SHAPES, dtype=np.int32)
    sizes = [3 * height * width for height, width in SHAPES]
    return Images(
        labels=np.arange(len(SHAPES)),
        shapes=shapes,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        flat=rng.integers(0, 256, sum(sizes), dtype=np.uint8),
    )


@pytest.mark.parametrize("views", [Views(), Views(light=True, mirror=False)], ids=["support", "light"])
@pytest.mark.parametrize("kept_bytes", [0, 10_000, 2**30], ids=["none kept", "some kept", "all kept"])
def test_views_of_the_device_equal_those_of_the_host(images: Images, views: Views, kept_bytes: int) -> None:
    on_device = DeviceImages(images, "cpu", kept_bytes)
    for view in (1, 2):
        rows = [2, 0, 3, 1]
        ours = views.draw(on_device, rows, view, size=24, dataset="made-up", seed=0)
        assert torch.equal(ours, views.draw(images, rows, view, size=24, dataset="made-up", seed=0))
    for _ in range(2):
        ours, theirs = (each.evaluation_views([1, 2], InputSize(24)) for each in (on_device, images))
        assert torch.equal(ours, theirs)


def test_an_image_is_read_once_while_there_is_room(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = Images.image

    def image(self: Images, row: int) -> Tensor:
        read.append(row)
        return original(self, row)

    monkeypatch.setattr(Images, "image", image)
    on_device = DeviceImages(images, "cpu", kept_bytes=3 * 40 * 60)
    for view in (1, 2, 3):
        Views().draw(on_device, [0, 1], view, size=24, dataset="made-up", seed=0)
    assert read == [0, 1, 1, 1]
