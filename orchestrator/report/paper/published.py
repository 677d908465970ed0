"""The paper's own numbers, as data: what a measured accuracy is set beside."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from orchestrator.catalog.fields import StrictModel
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.util.errors import UserError

AVERAGE = "Average"
"""The dataset name of a table's mean over its datasets."""

_LAST_WORD = "tab:tta_general_ufm"
"""Where the paper prints a number twice, the table that agrees with the accuracies it is the mean of."""


@dataclass(frozen=True)
class PublishedRow:
    """One printed accuracy; ``shots`` is ``None`` where the table has no k."""

    table: str
    track: str
    domain: str
    backbone: str
    shots: int | None
    method: str
    dataset: str
    accuracy: float


@dataclass(frozen=True)
class PublishedDataset:
    """One line of the paper's dataset tables, for one backbone."""

    domain: str
    dataset: str
    printed_as: str
    classes: int
    backbone: str
    finetuned_accuracy: float


class PublishedFootnote(StrictModel):
    """Why printed numbers differ from a fair measurement: of those that match every key, empty ones matching all.

    Attributes:
        tables: labels in the paper's source, without their ``tab:``.
    """

    tables: tuple[str, ...]
    methods: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    text: str


class _Footnotes(StrictModel):
    footnotes: tuple[PublishedFootnote, ...]


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Every accuracy of every table, in the paper's order. Raises ``UserError`` when the file is missing."""
    return tuple(
        PublishedRow(
            table=row["table"],
            track=row["track"],
            domain=row["domain"],
            backbone=row["backbone"],
            shots=int(row["k"]) if row["k"] else None,
            method=row["method"],
            dataset=row["dataset"],
            accuracy=float(row["accuracy"]),
        )
        for row in _read("results.csv")
    )


@cache
def published_datasets() -> tuple[PublishedDataset, ...]:
    """The dataset tables: printed class counts and accuracies of the fine-tuned source models."""
    return tuple(
        PublishedDataset(
            domain=row["domain"],
            dataset=row["dataset"],
            printed_as=row["printed_as"],
            classes=int(row["classes"]),
            backbone=row["backbone"],
            finetuned_accuracy=float(row["finetuned_accuracy"]),
        )
        for row in _read("datasets.csv")
    )


@cache
def published_footnotes() -> tuple[PublishedFootnote, ...]:
    """The notes to the paper's numbers. Raises ``UserError`` when the file is missing or not what it should be."""
    path = grids_folder() / "published" / "footnotes.yaml"
    return validated(_Footnotes, read_mapping(path), Location.of(path)).footnotes


def published_tables() -> tuple[str, ...]:
    """The labels of the paper's accuracy tables, in its order."""
    return tuple(dict.fromkeys(row.table for row in published_rows()))


def published_table(name: str) -> tuple[PublishedRow, ...]:
    """The rows of one table, in its order; empty for a table the paper does not have."""
    return tuple(row for row in published_rows() if row.table == name)


def published_accuracy(
    track: str, backbone: str | None, domain: str, shots: int | None, method: str, dataset: str | None
) -> float | None:
    """The printed accuracy, per cent; ``None`` where the paper prints none.

    Args:
        track, domain, method: as in grids.
        backbone, dataset: the names in the paper's tables (``published_as`` in the catalog); ``None`` finds nothing.
        shots: k; the test-time track has none, so ``None`` and 0 mean the same there. A method that draws nothing has
            0 out of distribution, where the paper prints it with the others at 16.
    """
    if backbone is None or dataset is None:
        return None
    if track == "ood" and shots == 0:
        shots = 16
    return _accuracies().get((track, backbone, domain, None if track == "tta" else shots, method, dataset))


def published_finetuned(backbone: str | None, dataset: str | None) -> float | None:
    """The printed accuracy of a fine-tuned source model, per cent; ``None`` where the paper prints none."""
    for row in published_datasets():
        if (row.backbone, row.dataset) == (backbone, dataset):
            return row.finetuned_accuracy
    return None


@cache
def _accuracies() -> dict[tuple[str, str, str, int | None, str, str], float]:
    found: dict[tuple[str, str, str, int | None, str, str], float] = {}
    for row in published_rows():
        key = (row.track, row.backbone, row.domain, row.shots, row.method, row.dataset)
        if key not in found or row.table == _LAST_WORD:
            found[key] = row.accuracy
    return found


def _read(name: str) -> list[dict[str, str]]:
    path = grids_folder() / "published" / name
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError as error:
        raise UserError(
            f"the paper's numbers cannot be read: {error}",
            where=f"grids/published/{name}",
            hint="reinstall the project",
        ) from None
