"""Tracks: the ways in which adaptation is measured, one file each.

A track says what a method receives, how its cells are scored and what the report shows. Other modules read these facts
from the :class:`Track` in ``TRACKS``, and do not compare names of tracks. Start with ``base.py``.
``docs/adding-a-track.md`` shows how to add a track.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchestrator.tracks.base import MetricName, Track
from orchestrator.tracks.base_to_new import BASE_TO_NEW
from orchestrator.tracks.cross_dataset import CROSS_DATASET
from orchestrator.tracks.fewshot import FEWSHOT
from orchestrator.tracks.imbalanced import IMBALANCED
from orchestrator.tracks.meta import META
from orchestrator.tracks.ood import OOD
from orchestrator.tracks.tta import TTA, TTA_IMAGE, TTA_STREAM

if TYPE_CHECKING:
    from bolt.methods import Method
    from orchestrator.core.cell import MethodRef

TRACKS: dict[str, Track] = {
    track.name: track
    for track in (FEWSHOT, OOD, TTA, TTA_STREAM, TTA_IMAGE, META, BASE_TO_NEW, CROSS_DATASET, IMBALANCED)
}
"""Name of every track -> the track, in the order of reports. A new track needs its import and a place in this list."""


def stored_track(name: str) -> Track:
    """Return the track that a stored record names, or a track with default values if no such track is installed."""
    return TRACKS.get(name) or Track(name, name)


def configured(method: MethodRef, track: str) -> tuple[Method, Any]:
    """Return a method, and its settings on a track. Raises the errors of ``METHODS`` and of :meth:`Track.configure`."""
    from bolt.methods import METHODS  # imports torch

    return METHODS[method.name], _settings(method, track)


@lru_cache(maxsize=1024)
def _settings(method: MethodRef, track: str) -> Any:
    """Return a method's settings. They are cached, because making them for each cell takes most of a plan's time."""
    from bolt.methods import METHODS  # imports torch

    return TRACKS[track].configure(METHODS[method.name], method.settings_dict())


__all__ = ["TRACKS", "MetricName", "Track", "configured", "stored_track"]
