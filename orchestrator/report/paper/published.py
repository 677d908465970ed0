"""The paper's own numbers as data, to compare measured accuracies with, and the footnotes to them."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter

from orchestrator.analysis.best_set import MIN_DATASETS, best_set
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import StrictModel, validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.core.cell import Place
from orchestrator.tracks import stored_track
from orchestrator.util.errors import UserError

AVERAGE = "Average"
"""What a position has in place of a dataset's name if it is a mean over the datasets of a table."""

_CORRECT_TABLE = "tta_general_ufm"
"""The paper prints one mean twice, with two values. The value in this table is the mean of the printed accuracies."""


@dataclass(frozen=True)
class Position:
    """One position in the paper's tables.

    Attributes:
        shots: the k; 0 if the accuracy has no k.
        method: for a measured accuracy, the method's label in the report's tables. For a published accuracy, the
            method's name: as in grid files for the BOLT paper, as printed for other papers.
    """

    track: str
    domain: str
    backbone: str
    shots: int
    method: str
    dataset: str


@dataclass(frozen=True)
class PublishedDataset:
    """What the paper prints about one dataset, and about the model of one backbone that was fine-tuned on it."""

    domain: str
    dataset: str
    printed_as: str
    classes: int
    backbone: str
    finetuned_accuracy: float


class PublishedFootnote(StrictModel):
    """Why some printed numbers differ from a fair measurement.

    The note is about those numbers of ``tables`` (labels in the paper's source, without ``tab:``) whose method,
    backbone, dataset and k are listed in the fields. An empty field matches all numbers.
    """

    tables: tuple[str, ...]
    methods: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    text: str

    def is_about(self, values: Mapping[str, object]) -> bool:
        """Return whether :func:`notes_on` returns this note for ``values``."""
        listed = {"method": self.methods, "backbone": self.backbones, "dataset": self.datasets, "shots": self.shots}
        conditions = {axis: own for axis, own in listed.items() if own}
        same_scope = min(len(conditions), 2) == min(len(values), 2)
        return same_scope and all(values.get(axis) in own for axis, own in conditions.items())


class _Footnotes(StrictModel):
    footnotes: tuple[PublishedFootnote, ...]


@cache
def printed_tables() -> Mapping[str, Mapping[Position, float]]:
    """Return the accuracies that each table of the paper prints, in per cent, in the paper's order.

    The key is the table's label in the paper's source, without ``tab:``. Raises ``UserError`` if the file cannot be
    read.
    """
    tables: dict[str, dict[Position, float]] = {}
    for row in read_published("results.csv"):
        at = Position(row["track"], row["domain"], row["backbone"], int(row["k"] or 0), row["method"], row["dataset"])
        tables.setdefault(row["table"].removeprefix("tab:"), {})[at] = float(row["accuracy"])
    return tables


@cache
def published_accuracies() -> Mapping[Position, float]:
    """Return every accuracy that the paper prints, in per cent; a mean printed twice is that of ``_CORRECT_TABLE``."""
    tables = printed_tables()
    correct_last = sorted(tables, key=lambda label: label == _CORRECT_TABLE)
    return {at: accuracy for label in correct_last for at, accuracy in tables[label].items()}


@cache
def published_datasets() -> tuple[PublishedDataset, ...]:
    """Return the tables of datasets: printed class counts and accuracies of the fine-tuned source models."""
    return TypeAdapter(tuple[PublishedDataset, ...]).validate_python(read_published("datasets.csv"))


@cache
def published_footnotes() -> tuple[PublishedFootnote, ...]:
    """Return the footnotes to the paper's numbers. Raises ``UserError`` if the file is missing or not valid."""
    path = grids_folder() / "published" / "footnotes.yaml"
    return validated(_Footnotes, read_mapping(path), Location.of(path)).footnotes


def notes_on(label: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the texts of a table's footnotes about a number, a method, a dataset or the whole table.

    ``label``: the table's label, without ``tab:``. ``values``: axis -> value. A number has all axes, a dataset or a
    method has one, and the whole table has none. A note with several conditions is printed at the numbers. A note with
    a condition on only one axis is printed at the name of the dataset or method.
    """
    return tuple(note.text for note in published_footnotes() if label in note.tables and note.is_about(values))


def published_accuracy(
    track: str, backbone: str | None, domain: str, shots: int | None, method: str, dataset: str | None
) -> float | None:
    """Return the printed accuracy in per cent; ``None`` if the paper prints none.

    Args:
        track, domain, method: names as in grid files.
        backbone, dataset: names in the paper's tables (``published_as`` in the catalog); ``None`` if they have none.
        shots: the cell's k. On some tracks, the paper prints the accuracy under another k (``Track.published_shots``).
    """
    if backbone is None or dataset is None:
        return None
    printed_shots = stored_track(track).published_shots(shots) or 0
    return published_accuracies().get(Position(track, domain, backbone, printed_shots, method, dataset))


def published_verdicts(accuracies: Mapping[Position, float]) -> tuple[VerdictSeries, ...]:
    """Return a verdict series for each track, domain and backbone.

    The rule is the same as for measured accuracies. A verdict needs two methods with ``MIN_DATASETS`` datasets each.
    Published accuracies have neither seeds nor costs.
    """
    places: dict[Place, dict[int, dict[str, dict[tuple[str, int], float]]]] = {}
    for at, accuracy in accuracies.items():
        if at.dataset != AVERAGE:
            by_k = places.setdefault(Place(at.track, "published", at.backbone, at.domain), {})
            by_k.setdefault(at.shots, {}).setdefault(at.method, {})[at.dataset, 0] = accuracy
    every = []
    for place, by_k in places.items():
        verdicts = []
        for k, methods in sorted(by_k.items()):
            scores = {method: own for method, own in methods.items() if len(own) >= MIN_DATASETS}
            if len(scores) > 1:
                verdicts.append(replace(best_set(scores, without_seeds=tuple(scores)), k=k))
        if verdicts:
            every.append(VerdictSeries(place, tuple(verdicts)))
    return tuple(every)


def read_published(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table in ``grids/published``. Raises ``UserError`` if it cannot be read."""
    try:
        with open(grids_folder() / "published" / name, encoding="utf-8", newline="") as stream:
            return tuple(csv.DictReader(stream))
    except OSError as error:
        what = f"the published numbers cannot be read: {error}"
        raise UserError(what, where=f"grids/published/{name}", hint="reinstall the project") from None
