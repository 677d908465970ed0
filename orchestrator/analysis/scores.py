"""The score of every test split of every cell, by which rows, verdicts, tables and figures compare methods.

Only this module chooses the metric: the user's choice or, without one, the metric of the track. Accuracy, balanced
accuracy and the accuracy of the worst class follow from every result. The other metrics need the stored predictions.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.cell import Cell
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracks import MetricName, stored_track
from orchestrator.util.errors import UserError
from orchestrator.util.units import listed, pluralize

ReadPredictions = Callable[[Sequence[Result]], Mapping[str, Sequence[StoredPredictions]]]
"""``results -> predictions by cell id``, such as :meth:`orchestrator.store.store.Store.read_predictions`."""


@dataclass(frozen=True)
class Score:
    """The value of a metric on one test split, in per cent.

    ``zero_shot``: the value of the frozen backbone on the same images; ``None`` if no cell measured it.
    """

    metric: MetricName
    value: float
    zero_shot: float | None


Scores = Mapping[tuple[str, str], Score]
"""Cell id and name of the test split -> score. A test split without stored predictions may have no score."""

_NAMED = 3
_READ_TOGETHER = 256
"""Number of results whose predictions are in memory at the same time."""


def scores_of(
    results: Sequence[Result], metric: MetricName | None = None, read_predictions: ReadPredictions | None = None
) -> Scores:
    """Return the scores of results in ``metric``, by default in the metric of each track."""
    values: dict[tuple[str, str], tuple[MetricName, float]] = {}
    for start in range(0, len(results), _READ_TOGETHER):
        values.update(_values(results[start : start + _READ_TOGETHER], metric, read_predictions))
    zero_shot = {
        _place(result.cell, evaluation): (evaluation, values[result.cell.id, evaluation.dataset][1])
        for result in results
        for evaluation in result.evaluations
        if result.cell.method.name == "zero_shot" and (result.cell.id, evaluation.dataset) in values
    }
    scores = {}
    for result in results:
        for evaluation in result.evaluations:
            if (key := (result.cell.id, evaluation.dataset)) not in values:
                continue
            chosen, value = values[key]
            frozen = evaluation.accuracy_zero_shot if chosen == "accuracy" else None
            found = zero_shot.get(_place(result.cell, evaluation))
            if frozen is None and found is not None and _same_images(evaluation, found[0]):
                frozen = found[1]
            scores[key] = Score(chosen, value, frozen)
    return scores


def unscored_sentence(results: Sequence[Result], scored: Container[str]) -> str:
    """Return a sentence on the results whose cells are not in ``scored``; empty if there are none."""
    cell_ids = [result.cell.id for result in results if result.cell.id not in scored]
    verb = "has" if len(cell_ids) == 1 else "have"
    what = f"{pluralize(len(cell_ids), 'result')} without predictions {verb} no score"
    return f"{what}: {listed(cell_ids, _NAMED)}" if cell_ids else ""


def check_scored(scored: Collection[object], metric: MetricName | None, where: str) -> None:
    """Raise ``UserError`` if ``scored``, the part of the results that has a score, is empty.

    A result without a score lacks the predictions that the metric needs.
    """
    if not scored:
        raise UserError(
            f"no result has predictions, which {f'{metric} needs' if metric else 'these metrics need'}; "
            "results of early versions lack them",
            where=where,
            hint="accuracy, balanced_accuracy and worst_class need no predictions",
        )


def _values(
    results: Sequence[Result], metric: MetricName | None, read_predictions: ReadPredictions | None
) -> Iterator[tuple[tuple[str, str], tuple[MetricName, float]]]:
    """Yield (cell id, test split) and (metric, value) of every test split that has a value."""
    chosen: dict[str, MetricName] = {one.cell.id: metric or stored_track(one.cell.track).metric for one in results}
    by_accuracy = [one for one in results if chosen[one.cell.id] == "accuracy"]
    yield from (((one.cell.id, e.dataset), ("accuracy", e.accuracy)) for one in by_accuracy for e in one.evaluations)
    if len(by_accuracy) == len(results):
        return
    import numpy as np

    from orchestrator.analysis.metrics import METRICS, Answers

    unread = []
    for result in results:
        name = chosen[result.cell.id]
        if (of_recalls := METRICS[name].of_recalls) is not None:
            for evaluation in result.evaluations:
                counts_C2 = np.array([pair for pair in evaluation.per_class if pair[1]], dtype=float)
                yield (result.cell.id, evaluation.dataset), (name, of_recalls(counts_C2[:, 0] / counts_C2[:, 1]))
        elif name != "accuracy":
            unread.append(result)
    predictions = read_predictions(unread) if unread and read_predictions is not None else {}
    for cell_id, splits in predictions.items():
        for split in splits:
            name = chosen[cell_id]
            yield (cell_id, split.dataset), (name, METRICS[name].of(Answers.of(split)))


def _place(cell: Cell, evaluation: Evaluation) -> tuple[str, ...]:
    """Return a key that is equal for a cell and the zero-shot cell on the same test split."""
    return cell.track, cell.protocol.name, cell.backbone.name, cell.dataset.name, evaluation.dataset


def _same_images(evaluation: Evaluation, zero_shot: Evaluation) -> bool:
    """Return whether two evaluations are of the same images, judged by the zero-shot accuracy and the class sizes."""
    sizes, frozen_sizes = ([size for _, size in one.per_class] for one in (evaluation, zero_shot))
    return evaluation.accuracy_zero_shot == zero_shot.accuracy and sizes == frozen_sizes
