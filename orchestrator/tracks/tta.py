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

    A method counts its passes itself, from the number of test images, if it does not change the tower or if ``tta`` is
    its only track. For the other methods, the result is an estimate. They train by :mod:`bolt.training.test_time`,
    where one forward pass over the test images selects *trusted* images, whose predictions become labels. In each
    epoch, every other test image is in a batch once, together with a trusted image. Both have a strong view with a
    gradient. The image that is not trusted also has a weak view without a gradient. The estimate takes every test image
    for one that is not trusted.
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
