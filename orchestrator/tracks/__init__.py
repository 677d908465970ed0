"""Tracks: the ways in which adaptation is measured, one file each.

A track says what a method is given, how its cells are scored and what the report shows. Everything else asks the
:class:`Track` in ``TRACKS``; nothing else compares track names. Start with ``base.py``; ``docs/adding-a-track.md``
adds one.
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
    for track in (
        FEWSHOT,
        OOD,
        TTA,
        TTA_STREAM,
        TTA_IMAGE,
        META,
        BASE_TO_NEW,
        CROSS_DATASET,
        IMBALANCED,
    )
}
"""Every track by its name, in the order of reports. A new track is two lines here: its import, and one in this list."""


def stored_track(name: str) -> Track:
    """Return the track of a stored record.

    It is the registered one, or one with defaults if this installation has no track of that name.
    """
    return TRACKS.get(name) or Track(name, name)


__all__ = ["TRACKS", "MetricName", "Track", "stored_track"]
