"""Decode once: each split becomes memory-mapped uint8 pixels that every later reader shares.

The test split is stored as the tower sees it: shortest side resized (bicubic), centre-cropped, RGB - bit-equal to
open_clip's evaluation transform up to normalisation. Support images keep their own size for random crops. The
whole training split, which only fine-tuning a source reads, has its shortest side capped at twice the tower's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from bolt.images import evaluation_pixels, rgb_pixels
from orchestrator.datasets.part import Part
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

SHORT_SIDE_CAP = 2

__all__ = [
    "SHORT_SIDE_CAP",
    "Images",
    "evaluation_pixels",
    "read_images",
    "support_pixels",
    "training_pixels",
    "write_images",
]


def training_pixels(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """uint8 (3, H, W): the image in RGB with its shortest side at most ``SHORT_SIDE_CAP * size``."""
    cap = SHORT_SIDE_CAP * size
    shortest = min(image.size)
    if shortest > cap:
        width, height = (round(side * cap / shortest) for side in image.size)
        image = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    return rgb_pixels(image)


def support_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """uint8 (3, H, W): the image in RGB at its own size."""
    return rgb_pixels(image)


@dataclass(frozen=True)
class Images:
    """A decoded split.

    Attributes:
        labels: (N,) int64.
        shapes: (N, 2) height and width.
        offsets: (N + 1,) where each image starts in ``flat``.
        flat: all pixels, channel-first per image, memory-mapped.
    """

    labels: NDArray[np.int64]
    shapes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    flat: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Tensor:
        """A copy of one image, (3, H, W)."""
        return self._tensor(index, index + 1)[0]

    def batch(self, start: int, stop: int) -> Tensor:
        """A copy of the images ``start`` to ``stop`` of a split whose images all have one shape, (B, 3, H, W)."""
        return self._tensor(start, stop)

    def _tensor(self, start: int, stop: int) -> Tensor:
        import torch

        height, width = self.shapes[start]
        pixels = np.array(self.flat[self.offsets[start] : self.offsets[stop]])  # off the map, which is read-only
        return torch.from_numpy(pixels.reshape(-1, 3, height, width))


def write_images(part: Part, transform: Callable[[Image.Image], NDArray[np.uint8]], folder: Path) -> None:
    """Decode ``part`` into ``folder``.

    Raises ``UserError`` listing every image that cannot be decoded, with its path and the reason.
    """
    shapes = np.zeros((len(part), 2), dtype=np.int32)
    broken: list[str] = []
    with open(folder / "pixels.bin", "wb") as stream:
        for index in range(len(part)):
            try:
                pixels = transform(part.read(index))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                broken.append(f"{part.origin(index)}: {error}")
                continue
            shapes[index] = pixels.shape[1:]
            stream.write(pixels.tobytes())
    if broken:
        shown = "\n  ".join(broken[:10]) + (f"\n  ... and {len(broken) - 10} more" if len(broken) > 10 else "")
        raise UserError(
            f"{len(broken)} of {len(part)} images cannot be decoded:\n  {shown}", hint="mend or remove them"
        )
    sizes = 3 * shapes.astype(np.int64).prod(axis=1)
    np.save(folder / "labels.npy", part.labels)
    np.save(folder / "shapes.npy", shapes)
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))


def read_images(path: Callable[[str], Path]) -> Images:
    """Open a decoded split; ``path`` gives the local path of each of its files. Pixels stay on disk until read."""
    return Images(
        labels=np.load(path("labels.npy")),
        shapes=np.load(path("shapes.npy")),
        offsets=np.load(path("offsets.npy")),
        flat=np.memmap(path("pixels.bin"), dtype=np.uint8, mode="r"),
    )
