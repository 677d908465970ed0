"""Tracks: the ways in which adaptation is measured, one file each.

A track says what a method receives, how its cells are scored and what the report shows. Other modules read these facts
from the :class:`Track` in ``TRACKS``, and do not compare names of tracks. Start with ``base.py``.
``docs/adding-a-track.md`` shows how to add a track.
"""

from orchestrator.tracks.base import MetricName, Track
from orchestrator.tracks.base_to_new import BASE_TO_NEW
from orchestrator.tracks.cross_dataset import CROSS_DATASET
from orchestrator.tracks.fewshot import FEWSHOT
from orchestrator.tracks.imbalanced import IMBALANCED
from orchestrator.tracks.meta import META
from orchestrator.tracks.ood import OOD
from orchestrator.tracks.tta import TTA, TTA_IMAGE, TTA_STREAM

TRACKS: dict[str, Track] = {
    track.name: track
    for track in (FEWSHOT, OOD, TTA, TTA_STREAM, TTA_IMAGE, META, BASE_TO_NEW, CROSS_DATASET, IMBALANCED)
}
"""Name of every track -> the track, in the order of reports. A new track needs its import and a place in this list."""


def stored_track(name: str) -> Track:
    """Return the track that a stored record names, or a track with default values if no such track is installed."""
    return TRACKS.get(name) or Track(name, name)


__all__ = ["TRACKS", "MetricName", "Track", "stored_track"]
