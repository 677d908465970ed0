"""Images in memory that serve as the support or as the unlabelled images of a task.

Shape legend: N images, B images of a batch, D embedding width, S image side, H, W height and width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bolt.clip.augment import SUPPORT_CROP, augmented_view, evaluation_view
from bolt.clip.backbone import Backbone
from bolt.clip.image_files import UPRIGHT, Reading, open_named
from bolt.clip.preprocess import rgb_pixels
from bolt.model.model import ImageInput, refuse_no_image
from bolt.seeds import torch_generator
from bolt.task.support import batch_order
from bolt.task.task import EVALUATION_VIEW, Support, Unlabelled


class InMemoryImages:
    """Images and their views, for one backbone.

    Photographs are turned upright by their EXIF orientation. As in the benchmark, the random numbers of an image's view
    depend only on the name of the data, the seed, the number of the view and the position of the image.

    Args:
        images: Pillow images, paths of image files, or uint8 RGB tensors (3, H, W).
        name, seed: the name of the data, and the seed, for the random numbers of views and orders.
        mirror: whether augmented views may be mirrored.
        reading: how files of measured values, such as satellite images, are read.
    """

    def __init__(
        self, backbone: Backbone, images: Sequence[ImageInput], *, name: str, seed: int, mirror: bool = True,
        reading: Reading = UPRIGHT,
    ) -> None:  # fmt: skip
        self._backbone, self._name, self._seed = backbone, name, seed
        self._crop = SUPPORT_CROP if mirror else replace(SUPPORT_CROP, flip=0.0)
        for image in images:
            refuse_no_image(image)
        self._images = [
            image if isinstance(image, Tensor) else torch.from_numpy(rgb_pixels(open_named(image, reading)))
            for image in images
        ]

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, view: int, rows: Tensor) -> Tensor:
        """Return view number ``view`` of the images at the positions ``rows``, uint8 (B, 3, S, S)."""
        size, name, seed = self._backbone.input_size, self._name, self._seed
        if view == EVALUATION_VIEW:
            return torch.stack([evaluation_view(self._images[row], size) for row in rows.tolist()])
        return torch.stack(
            [augmented_view(self._images[row], size.side, name, seed, view, row, self._crop) for row in rows.tolist()]
        )

    def features(self, view: int) -> Tensor:
        """Return the frozen tower's raw features of view number ``view`` of all images, (N, D)."""
        return self._backbone.encode_images(self.pixels(view, torch.arange(len(self))))

    def support(self, labels_N: Tensor) -> Support:
        """Return all images as a support. If there are no labels, the support is empty."""
        size = len(labels_N)
        return Support(
            labels_N=labels_N.to(self._backbone.device),
            indices_N=torch.arange(size),
            pixels=self.pixels,
            features=self.features,
            order=lambda epoch: batch_order(size, dataset=self._name, seed=self._seed, epoch=epoch),
        )

    def unlabelled(self) -> Unlabelled:
        """Return all images as the unlabelled images of a task."""
        return Unlabelled(
            size=len(self),
            pixels=self.pixels,
            features=lambda: self.features(EVALUATION_VIEW),
            order=lambda stream, epoch, size: torch.randperm(
                size, generator=torch_generator("stream", self._name, self._seed, stream, epoch, size)
            ),
        )
