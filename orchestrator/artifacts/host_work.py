"""The work of a CPU core beside a GPU: decoding, making views, launching operators and preparing source models.

The constants were measured on one thread of an AMD EPYC server. A plan adds them up (``planning/gpu_estimate.py``).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

_DECODING_PER_PIXEL = 8.5e-9
"""Seconds of decoding a JPEG photograph: 1.5 ms for 500 x 375 pixels."""
_RESIZE, _RESIZE_PER_PIXEL = 1.2e-3, 5e-9
"""Seconds of resizing a decoded image with Pillow: 2.1 ms for 500 x 375 pixels, 2.9 ms for 600 x 600."""
_COPY_PER_PIXEL = 0.7e-9
"""Seconds of copying a stored pixel off its memory map and into pinned memory."""
_DEVICE_VIEW = 0.06e-3
"""Seconds of drawing the box of a view and launching its part of the batch that a GPU resizes."""
_TEST_IMAGE = 0.04e-3
"""Seconds of taking a stored test image to the GPU."""
_LAUNCH_TRAINING, _LAUNCH_FORWARD = 0.9e-3, 0.25e-3
"""Seconds of launching a training step and a forward pass, for each transformer block. A BOLT step takes 9.7 ms at 12
blocks and 19.9 ms at 24, a batch that is scored 3 ms at 12."""
READ_PER_NUMBER = 6e-9
"""Seconds of reading a source model and subtracting the pre-trained weights, for each number of its tower."""
BASIS_PER_NUMBER = 1.8e-9
"""Seconds of orthogonalising a basis, for each source and each number of its tower: 2.3 s for 16 sources of ViT-B."""
DIRECTIONS_PER_NUMBER = 1.2e-7
"""Seconds of decomposing a source, for each number of its tower: 9 s for ViT-B."""


@dataclass(frozen=True)
class HostWork:
    """Seconds of one CPU core.

    Attributes:
        decoding: opening image files and resizing them for the store.
        views: making augmented views, and taking images to the GPU.
        launching: launching the operators of training steps and forward passes.
        sources: reading source models, decomposing them and making bases of them.
    """

    decoding: float = 0.0
    views: float = 0.0
    launching: float = 0.0
    sources: float = 0.0

    def __add__(self, other: HostWork) -> HostWork:
        return HostWork(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def seconds(self) -> float:
        """The sum of all parts."""
        return self.decoding + self.views + self.launching + self.sources


def decoding(images: float, pixels: float, *, resized: bool = False) -> HostWork:
    """Decoding so many images of so many pixels each, and resizing them."""
    each = _DECODING_PER_PIXEL * pixels + resized * (_RESIZE + _RESIZE_PER_PIXEL * pixels)
    return HostWork(decoding=images * each)


def views_on_device(views: float, pixels: float = 0.0) -> HostWork:
    """Making so many views on a GPU, each of an image of so many pixels that has to be copied there first."""
    return HostWork(views=views * (_DEVICE_VIEW + _COPY_PER_PIXEL * pixels))


def test_images_read(images: float) -> HostWork:
    """The work of taking so many stored test images to the GPU."""
    return HostWork(views=_TEST_IMAGE * images)


def launches(blocks: int, training_steps: float, forward_batches: float) -> HostWork:
    """Launching training steps and forward passes of a tower with so many transformer blocks."""
    return HostWork(launching=blocks * (_LAUNCH_TRAINING * training_steps + _LAUNCH_FORWARD * forward_batches))
