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

    A method that keeps the tower counts them itself, from the number of test images. The others train by
    :mod:`bolt.training.test_time`: one forward pass over the test images selects the trusted ones. In each epoch a
    batch is half unlabelled images, each once, and half trusted ones. Each image has two strong views with a gradient
    and a weak view without one.
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
