"""Test-time adaptation: learn from the target's unlabelled test images, score on the same images.

The three tracks differ in what a method has seen when it predicts an image: all test images (``tta``), the image and
those before it in an order drawn from the seed (``tta_stream``), or only the image and its crops (``tta_image``). A
verdict never mixes two of these tracks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.tracks.base import Track

if TYPE_CHECKING:
    from bolt.methods import Method, TowerPasses


def _tower_passes(method: Method, settings: Any, support_size: int, test_size: int) -> TowerPasses:
    """Return how many images a cell takes through the tower.

    Some methods count their passes themselves: methods without a support, methods that do not change the tower, and
    methods with ``tta`` as their only track. For all other methods, the result is an estimate.

    The other methods train by :mod:`bolt.training.test_time`. First, one forward pass over the test images selects
    *trusted* images, whose predictions become labels. In each epoch, every image that is not trusted is in a batch
    once, together with a trusted image. The method trains on a strong view of each of the two images. A weak view of
    the image that is not trusted takes one more forward pass. The estimate counts all test images as not trusted.
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
