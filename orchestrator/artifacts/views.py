"""Views of decoded images: random crops, and images whose views are made on a GPU.

Shape legend: N, B images, S image side.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bolt.clip.augment import SOURCE_CROP, SUPPORT_CROP, Box, view_box
from bolt.clip.batched_resize import resize_crops
from bolt.clip.input_size import InputSize
from bolt.clip.transfer import to_device
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.datasets.images import Images
from orchestrator.util.identity import ADDED_LATER

KEPT_BYTES = 2 * 2**30
"""Largest number of bytes on the GPU for the pixels of a set of images. 16 photographs of each of 200 classes take
1.8 GB."""

ImageViews: TypeAlias = "Images | DeviceImages"
"""Images whose views are made on the host, or on a GPU."""


@dataclass(frozen=True)
class Views:
    """A family of augmented views.

    Attributes:
        light: whether crops keep nearly the whole image, as for fine-tuning sources.
        mirror: whether half of the crops are mirrored.
        smallest: the least share of an image's area that a crop keeps, unless ``light`` is set.
    """

    light: bool = False
    mirror: bool = True
    smallest: float = field(default=SUPPORT_CROP.smallest, metadata=ADDED_LATER)

    def draw(
        self,
        images: ImageViews,
        rows: Sequence[int],
        view: int,
        *,
        size: int,
        dataset: str,
        seed: int,
        indices: Sequence[int] | None = None,
    ) -> Tensor:
        """Return one augmented view (``view`` >= 1) of stored images: uint8 (N, 3, S, S).

        The crop of an image depends on its position in the split. ``indices`` are these positions; by default they are
        the ``rows``.
        """
        crop = SOURCE_CROP if self.light else replace(SUPPORT_CROP, smallest=self.smallest)
        crop = crop if self.mirror else replace(crop, flip=0.0)
        keys = rows if indices is None else indices
        shapes = zip(images.shapes[list(rows)].tolist(), keys, strict=True)
        boxes = [view_box(height, width, dataset, seed, view, key, crop) for (height, width), key in shapes]
        return images.crops(rows, boxes, size)


class DeviceImages:
    """A decoded split whose views are made on a GPU, with the same bits as the views of :class:`Images`.

    An image is copied to the GPU when it is first read. It stays on the GPU if ``kept_bytes`` has room for its pixels;
    otherwise it is copied each time. Views without augmentation are made on the host and then copied in the same way.
    """

    def __init__(self, images: Images, device: torch.device | str, kept_bytes: int = KEPT_BYTES) -> None:
        self._images, self._device = images, torch.device(device)
        self._left = kept_bytes
        self._kept: dict[tuple[int, InputSize | None], Tensor] = {}

    @property
    def shapes(self) -> NDArray[np.int32]:
        """Height and width of each image, (N, 2)."""
        return self._images.shapes

    def crops(self, rows: Sequence[int], boxes: Sequence[Box], size: int) -> Tensor:
        """Return the crops of :meth:`Images.crops`, on the device: uint8 (B, 3, S, S)."""
        return resize_crops([self._on_device(row) for row in rows], boxes, size)

    def evaluation_views(self, rows: Sequence[int], size: InputSize) -> Tensor:
        """Return the views of :meth:`Images.evaluation_views`, on the device: uint8 (B, 3, S, S)."""
        return torch.stack([self._on_device(row, size) for row in rows])

    def _on_device(self, row: int, evaluation_size: InputSize | None = None) -> Tensor:
        """Return an image on the device, or its evaluation view if a size is given."""
        key = row, evaluation_size
        if key in self._kept:
            return self._kept[key]
        view = self._images.evaluation_views([row], evaluation_size)[0] if evaluation_size else self._images.image(row)
        view = to_device(view, self._device)
        if view.numel() <= self._left:
            self._left -= view.numel()
            self._kept[key] = view
        return view


def place_images(key: Hashable, images: ImageViews, cache: ArtifactCache, kept_bytes: int = KEPT_BYTES) -> ImageViews:
    """Return the images as :class:`DeviceImages` if this process computes on a GPU, and unchanged if not.

    On the CPU, torchvision makes views faster than the matrix products of :class:`DeviceImages` do. The cache keeps one
    such object; a call with another ``key`` replaces it.
    """
    if isinstance(images, DeviceImages) or torch.device(cache.device).type != "cuda":
        return images
    return cache.cached(DeviceImages, key, lambda: DeviceImages(images, cache.device, kept_bytes), size=1)
