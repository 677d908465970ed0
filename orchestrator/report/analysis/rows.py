"""Results as rows: one per (cell, evaluation), the only thing every table and figure is computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from orchestrator.core.cell import Cell
from orchestrator.store.results import Evaluation, Result
from orchestrator.util.identity import fingerprint

if TYPE_CHECKING:
    import pandas as pd

LabelOf = Callable[[Cell], str]
"""The name a method (with its settings) goes by in tables."""


@dataclass(frozen=True)
class Row:
    """One accuracy and what it belongs to.

    Attributes:
        dataset, evaluated_on: the target that was adapted to, and the test split that was scored.
        k, seed: 0 for a method that uses no support.
        method: its label in tables; ``method_name`` is its identifier, which its colour is keyed by.
        gain: accuracy minus the zero-shot accuracy on the same images, in points.
        total: test images.
        published, delta: the published accuracy and measured minus published, where there is one.
        accuracy_own_classes, accuracy_zero_shot_own_classes: among the classes of the test split alone, where it holds
            fewer than the target.
        short_classes: how many of the target's ``classes`` had fewer than k training images.
        selects_on_test: whether test labels may have chosen anything.
    """

    track: str
    protocol: str
    backbone: str
    domain: str
    dataset: str
    evaluated_on: str
    k: int
    method: str
    method_name: str
    seed: int
    accuracy: float
    accuracy_zero_shot: float
    gain: float
    total: int
    trainable_parameters: int
    fit_seconds: float
    eval_seconds: float
    peak_memory_mib: float
    cell_id: str
    published: float | None = None
    delta: float | None = None
    accuracy_own_classes: float | None = None
    accuracy_zero_shot_own_classes: float | None = None
    short_classes: int = 0
    classes: int = 0
    selects_on_test: bool = False

    @property
    def test(self) -> str:
        """The test split, with the adapted dataset before it where the two differ."""
        return test_name(self.dataset, self.evaluated_on)

    @property
    def averaged(self) -> bool:
        """Whether it enters a mean: under distribution shift, the accuracy on the target itself does not."""
        return self.track != "ood" or self.dataset != self.evaluated_on


PublishedOf = Callable[[Row], "float | None"]
"""The published accuracy that belongs beside a row, or ``None``."""

NamesOf = Callable[[str, str], "tuple[str | None, str | None]"]
"""A backbone's and a dataset's names in the paper's tables, ``None`` for what it does not have."""


@dataclass(frozen=True)
class SourceRow:
    """A source model on its own task: how good it is, against the backbone it was fine-tuned from; per cent."""

    backbone: str
    domain: str
    dataset: str
    zero_shot_accuracy: float
    fine_tuned_accuracy: float
    total: int


def test_name(dataset: str, evaluated_on: str) -> str:
    """``evaluated_on``, or ``dataset → evaluated_on`` where a model is scored on something else than its target."""
    return evaluated_on if dataset == evaluated_on else f"{dataset} → {evaluated_on}"


def labels_of(cells: Iterable[Cell], label_of: LabelOf) -> dict[str, str]:
    """The label of every cell by its id, told apart where two different measurements share one.

    Averaging such cells silently would invent seeds. Where labels clash, the sources rule is added to them, then the
    digest of the method's settings, and at last a number.
    """
    unique = {cell.id: cell for cell in cells}
    labels = {id_: label_of(cell) for id_, cell in unique.items()}
    for suffix in (lambda cell: cell.sources_rule, lambda cell: fingerprint(cell.method)):
        words: dict[str, dict[str, str]] = defaultdict(dict)
        for id_ in _clashing(unique, labels):
            words[labels[id_]][id_] = suffix(unique[id_])
        for label, own in words.items():
            if len(set(own.values())) > 1:
                labels.update({id_: f"{label} [{text}]" for id_, text in own.items()})
    for place, group in _places(unique, labels).items():
        for number, id_ in enumerate(sorted(group)[1:], start=2):
            labels[id_] = f"{place[-1]} #{number}"
    return labels


def _places(cells: Mapping[str, Cell], labels: Mapping[str, str]) -> dict[tuple[object, ...], list[str]]:
    """Cell ids by the place in the tables they would be printed at."""
    places: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for id_, c in cells.items():
        place = (c.track, c.protocol.name, c.backbone.name, c.domain, c.dataset.name, c.shots, c.seed, labels[id_])
        places[place].append(id_)
    return places


def _clashing(cells: Mapping[str, Cell], labels: Mapping[str, str]) -> list[str]:
    """Ids of all cells whose label is used twice at any one place."""
    clashing = {place[-1] for place, ids in _places(cells, labels).items() if len(ids) > 1}
    return [id_ for id_ in cells if labels[id_] in clashing]


def row_list(
    results: Sequence[Result], labels: Mapping[str, str], published_of: PublishedOf | None = None
) -> list[Row]:
    """The rows of ``results``, in their order, under the labels of :func:`labels_of`."""
    return [
        _row(result, evaluation, labels[result.cell.id], published_of)
        for result in results
        for evaluation in result.evaluations
    ]


def rows_of(results: Sequence[Result], label_of: LabelOf, published_of: PublishedOf | None = None) -> pd.DataFrame:
    """One row per (cell, evaluation) with the columns of :class:`Row`; empty but with its columns for no results."""
    return frame_of(row_list(results, labels_of((r.cell for r in results), label_of), published_of))


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """``rows`` as a data frame."""
    import pandas as pd

    names = [field.name for field in fields(Row)]
    return pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names}, columns=names)


def _row(result: Result, evaluation: Evaluation, label: str, published_of: PublishedOf | None) -> Row:
    cell = result.cell
    row = Row(
        track=cell.track,
        protocol=cell.protocol.name,
        backbone=cell.backbone.name,
        domain=cell.domain,
        dataset=cell.dataset.name,
        evaluated_on=evaluation.dataset,
        k=cell.shots,
        method=label,
        method_name=cell.method.name,
        seed=cell.seed,
        accuracy=evaluation.accuracy,
        accuracy_zero_shot=evaluation.accuracy_zero_shot,
        gain=evaluation.accuracy - evaluation.accuracy_zero_shot,
        total=evaluation.total,
        trainable_parameters=result.trainable_parameters,
        fit_seconds=result.timings.fit_seconds,
        eval_seconds=result.timings.eval_seconds,
        peak_memory_mib=result.peak_memory_mib,
        cell_id=cell.id,
        accuracy_own_classes=evaluation.accuracy_own_classes,
        accuracy_zero_shot_own_classes=evaluation.accuracy_zero_shot_own_classes,
        short_classes=int(result.details.get("short_classes", 0)),
        classes=len(evaluation.per_class),
        selects_on_test=cell.protocol.selects_on_test,
    )
    published = published_of(row) if published_of else None
    if published is None:
        return row
    return replace(row, published=published, delta=row.accuracy - published)
