"""Decode a split once, into memory-mapped uint8 pixels that every later reader shares.

The images of a test split are stored at the tower's input size (:func:`bolt.clip.preprocess.evaluation_pixels`).
Training images are cropped at random later, so they are stored in their original size, or smaller if their shortest
side exceeds a cap.

Shape legend: N images, B images of a batch, H height, W width.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from bolt.clip.image_files import UNREADABLE, to_rgb_or_grey
from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import rgb_pixels
from orchestrator.core.events import OnProgress
from orchestrator.datasets.part import Part
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.threads import thread_map

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from bolt.clip.augment import Box

SHORT_SIDE_CAP = 2
"""Largest short side of an image that is stored for random crops, in multiples of the tower's image size. An image with
a longer short side is scaled down to this."""


def capped_pixels(image: Image.Image, short_side: int | None) -> NDArray[np.uint8]:
    """Return the pixels of an image in RGB, uint8 (3, H, W).

    If the shortest side exceeds ``short_side`` pixels, the image is resized (bicubic) to this length.
    """
    image = to_rgb_or_grey(image)
    shortest = min(image.size)
    if short_side is not None and shortest > short_side:
        width, height = (round(side * short_side / shortest) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return rgb_pixels(image)


@dataclass(frozen=True)
class Images:
    """A decoded split.

    Attributes:
        labels: (N,) int64.
        shapes: (N, 2) height and width.
        offsets: (N + 1,) where each image starts in ``flat``, and where the last image ends.
        flat: the pixels of all images, each channel-first, memory-mapped.
    """

    labels: NDArray[np.int64]
    shapes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    flat: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Tensor:
        """Copy one image, (3, H, W)."""
        return self.batch(index, index + 1)[0]

    def batch(self, start: int, stop: int) -> Tensor:
        """Copy the images from ``start`` up to ``stop``, (B, 3, H, W). They must have the same shape."""
        import torch

        height, width = self.shapes[start]
        pixels = np.array(self.flat[self.offsets[start] : self.offsets[stop]])  # a copy: the memory map is read-only
        return torch.from_numpy(pixels.reshape(-1, 3, height, width))

    def crops(self, rows: Sequence[int], boxes: Sequence[Box], size: int) -> Tensor:
        """Crop, resize and mirror each image as its box says: uint8 (B, 3, size, size)."""
        import torch

        from bolt.clip.augment import crop_view

        return torch.stack([crop_view(self.image(row), box, size) for row, box in zip(rows, boxes, strict=True)])

    def evaluation_views(self, rows: Sequence[int], size: InputSize) -> Tensor:
        """Apply CLIP's evaluation transform to the images: uint8 (B, 3, size, size)."""
        import torch

        from bolt.clip.augment import evaluation_view

        return torch.stack([evaluation_view(self.image(row), size) for row in rows])


def write_images(
    part: Part,
    transform: Callable[[Image.Image], NDArray[np.uint8]],
    folder: Path,
    verify: Sequence[str] = ("NAME",),
    progress: OnProgress = lambda done, of: None,
) -> None:
    """Decode ``part`` in several threads, and write the images into ``folder``, in their order.

    Args:
        part: the images; its ``read`` is called from several threads.
        transform: image -> uint8 (3, H, W).
        verify: arguments of the command ``data verify`` in the error's hint: the dataset's key, and options.

    Raises ``UserError`` listing every image that cannot be decoded, with its path and the reason.
    """

    def decode(index: int) -> NDArray[np.uint8] | str:
        try:
            return transform(part.read(index))
        except UNREADABLE as error:
            return one_line(error)

    shapes = np.zeros((len(part), 2), dtype=np.int32)
    broken: list[str] = []
    with open(folder / "pixels.bin", "wb") as stream:
        for index, pixels in enumerate(thread_map(decode, len(part))):
            if isinstance(pixels, str):
                broken.append(f"{part.origin(index)}: {pixels}")
            elif not broken:  # after a failure, decoding continues only to list all broken images
                shapes[index] = pixels.shape[1:]
                stream.write(pixels.data)
            progress(index + 1, len(part))
        stream.flush()
        os.fsync(stream.fileno())  # after a power failure there must be no manifest without its pixels
    if broken:
        remedy = shlex.join(["python", "-m", "orchestrator", "data", "verify", *verify, "--exclude-broken"])
        what = f"{len(broken)} of {len(part)} images cannot be decoded:\n  " + "\n  ".join(broken)
        raise UserError(what, hint=f"repair the images, or exclude them: {remedy}")
    sizes = 3 * shapes.astype(np.int64).prod(axis=1)
    np.save(folder / "labels.npy", part.labels)
    np.save(folder / "shapes.npy", shapes)
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))


def read_images(path: Callable[[str], Path]) -> Images:
    """Open a decoded split. Its pixels stay on disk until they are read.

    ``path``: file name -> local path of that file.
    """
    labels, shapes, offsets = (np.load(path(f"{name}.npy")) for name in ("labels", "shapes", "offsets"))
    return Images(labels, shapes, offsets, np.memmap(path("pixels.bin"), dtype=np.uint8, mode="r"))
