"""Test-time adaptation: learn from the target's unlabelled test images, score on the same images.

Three tracks differ in what a method sees when it predicts an image: all test images (``tta``); the images that came
before it, in an order that the seed draws (``tta_stream``); or this image alone, with crops of it (``tta_image``). A
verdict never mixes two of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.tracks.base import Track

if TYPE_CHECKING:
    from bolt.methods import Method, TowerPasses


def _tower_passes(method: Method, settings: Any, support_size: int, test_size: int) -> TowerPasses:
    """Return the images that a method takes through the tower.

    A method that does not change the tower counts its images itself, from the number of test images. The others train
    by :mod:`bolt.training.test_time`: one forward pass over the test images selects the trusted images. In each epoch,
    every test image is once in the unlabelled half of a batch, and a trusted image stands beside it in the other half.
    Both have a strong view with a gradient, and the unlabelled one has a weak view without a gradient too.
    """
    from bolt.methods import TowerPasses

    if not method.uses_support:
        return method.tower_passes(support_size, settings)
    if method.tracks == {"tta"} or not method.changes_tower:
        return method.tower_passes(test_size, settings)
    epochs = getattr(settings, "epochs", 0)
    return TowerPasses(forward=test_size * (1 + epochs), training=2 * test_size * epochs)


TTA = Track(
    name="tta",
    title="test-time adaptation",
    gives_support=False,
    tower_passes=_tower_passes,
    published_shots=lambda shots: None,
    lead_tables=("main", "datasets"),
)
TTA_STREAM = replace(TTA, name="tta_stream", title="test-time stream")
TTA_IMAGE = replace(TTA, name="tta_image", title="one test image at a time")
