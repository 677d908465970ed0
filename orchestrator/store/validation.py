"""What holds of every finished cell, whoever wrote its record: counts that add up, and scores that are made of them.

A record that breaks one of these was not made by scoring, and is not taken for a measurement. The checks look at exact
types, because ``True`` is no count and a text is no number, whatever Python thinks of comparing them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import gt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.store.results import Evaluation, Manifest, Result

_WHOLE = 1e-6
"""How far a percentage of a split may be from a whole number of images, for the rounding of one division."""


def check_result(result: Result) -> None:
    """Raise ``ValueError``, naming the field, unless a result can be what scoring a cell gave."""
    asked = tuple(ref.name for ref in result.cell.evaluate_on)
    scored = tuple(evaluation.dataset for evaluation in result.evaluations)
    if scored != asked:
        raise ValueError(f"it is scored on {scored}, and the cell asks for {asked}")
    for evaluation in result.evaluations:
        _check_evaluation(evaluation)
    _count("trainable_parameters", result.trainable_parameters)
    _count("support_size", result.support_size)
    timings = result.timings
    _numbers("timings", (timings.prepare_seconds, timings.fit_seconds, timings.eval_seconds))
    _numbers("peak_memory_mib", (result.peak_memory_mib,))
    _check_manifest(result.manifest)
    for name, curve in result.curves.items():
        if type(name) is not str or any(type(value) not in (float, int) for value in curve):
            raise ValueError(f"the curve {name!r} is not a list of numbers")
    _texts("details", result.details)
    if any(type(value) not in (float, int, str, bool) for value in result.details.values()):
        raise ValueError("details holds something other than numbers and texts")


def _check_evaluation(found: Evaluation) -> None:
    correct, total, name = found.correct, found.total, found.dataset
    _count(f"correct on {name}", correct)
    _count(f"total of {name}", total)
    if not 0 <= correct <= total or not total:
        raise ValueError(f"{correct} of {total} images of {name} are no count")
    if type(found.accuracy) is not float or found.accuracy != 100.0 * correct / total:
        raise ValueError(f"the accuracy on {name} is {found.accuracy!r}, its counts are {correct} of {total}")
    zero_shot = found.accuracy_zero_shot
    _percentage(f"accuracy_zero_shot on {name}", zero_shot)
    images = zero_shot * total / 100.0
    if abs(images - round(images)) > _WHOLE * total:
        raise ValueError(f"the zero-shot accuracy on {name} is {zero_shot!r}, which no count of {total} images gives")
    own = (found.accuracy_own_classes, found.accuracy_zero_shot_own_classes)
    if own != (None, None):
        for value in own:
            _percentage(f"an accuracy among the own classes of {name}", value)
    pairs = found.per_class
    if set(map(len, pairs)) - {2}:
        raise ValueError(f"the counts by class of {name} are no pairs")
    hits, sizes = zip(*pairs, strict=True) if pairs else ((), ())
    if {*map(type, hits), *map(type, sizes)} - {int} or any(map(gt, hits, sizes)) or min(hits, default=0) < 0:
        raise ValueError(f"the counts by class of {name} are no counts")
    if (sum(hits), sum(sizes)) != (correct, total):
        raise ValueError(
            f"the classes of {name} add up to {sum(hits)} of {sum(sizes)} images, not {correct} of {total}"
        )


def _check_manifest(manifest: Manifest) -> None:
    _count("threads", manifest.threads)
    words = (manifest.commit, manifest.device, manifest.finished_at, *manifest.artifacts)
    if any(type(value) is not str for value in words) or type(manifest.dirty) is not bool:
        raise ValueError("the manifest holds something other than texts")
    _texts("versions", manifest.versions)
    if any(type(value) is not str for value in manifest.versions.values()):
        raise ValueError("a version is no text")


def _count(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, which is no count")


def _percentage(name: str, value: Any) -> None:
    if type(value) is not float or not 0.0 <= value <= 100.0:
        raise ValueError(f"{name} is {value!r}, which is no percentage")


def _numbers(name: str, values: Iterable[Any]) -> None:
    if any(type(value) not in (float, int) or not math.isfinite(value) for value in values):
        raise ValueError(f"{name} holds something other than finite numbers")


def _texts(name: str, mapping: Any) -> None:
    if not isinstance(mapping, Mapping) or any(type(key) is not str for key in mapping):
        raise ValueError(f"{name} is not a mapping from texts")
