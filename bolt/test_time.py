"""Adapting to unlabelled test images by UFM: trusted samples, two streams of batches, two views of each image.

Shape legend: N images, B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bolt.task import Task, Unlabelled
from bolt.tower import ImageTower
from bolt.training import Recipe

if TYPE_CHECKING:
    from bolt.adaptation import Losses, Trainable


def unlabelled_losses(
    task: Task, unlabelled: Unlabelled, trainable: Trainable, recipe: Recipe, start: ImageTower | None
) -> Losses:
    """The UFM loss of two-stream batches, and their order. ``start`` is the tower whose predictions are trusted."""
    raise NotImplementedError
