"""The score of every test split of every cell, by which rows, verdicts, tables and figures compare methods.

Only this module chooses the metric: the user's choice or, without one, the metric of the track. Accuracy, balanced
accuracy and the accuracy of the worst class follow from every result. The other metrics need the stored predictions.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    scores: dict[tuple[str, str], Score] = {}
    for start in range(0, len(results), _READ_TOGETHER):
        scores.update(_without_zero_shot(results[start : start + _READ_TOGETHER], metric, read_predictions))
    evaluated = [(result.cell, evaluation) for result in results for evaluation in result.evaluations]
    zero_shot = {
        _place(cell, evaluation): (evaluation, scores[key].value)
        for cell, evaluation in evaluated
        if cell.method.name == "zero_shot" and (key := (cell.id, evaluation.dataset)) in scores
    }
    for cell, evaluation in evaluated:
        score, found = scores.get((cell.id, evaluation.dataset)), zero_shot.get(_place(cell, evaluation))
        if score and score.zero_shot is None and found and _same_images(evaluation, found[0]):
            scores[cell.id, evaluation.dataset] = replace(score, zero_shot=found[1])
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


def _without_zero_shot(
    results: Sequence[Result], metric: MetricName | None, read_predictions: ReadPredictions | None
) -> Iterator[tuple[tuple[str, str], Score]]:
    """Yield (cell id, test split) and the score, as far as there is one. Only an accuracy has its zero-shot value."""
    import numpy as np

    from orchestrator.analysis.metrics import METRICS, Answers

    chosen: dict[str, MetricName] = {one.cell.id: metric or stored_track(one.cell.track).metric for one in results}
    unread = []
    for result in results:
        name = chosen[result.cell.id]
        if name != "accuracy" and METRICS[name].of_recalls is None:
            unread.append(result)
            continue
        for evaluation in result.evaluations:
            score = Score(name, evaluation.accuracy, evaluation.accuracy_zero_shot)
            if (of_recalls := METRICS[name].of_recalls) is not None:
                counts_C2 = np.array([pair for pair in evaluation.per_class if pair[1]], dtype=float)
                score = Score(name, of_recalls(counts_C2[:, 0] / counts_C2[:, 1]), None)
            yield (result.cell.id, evaluation.dataset), score
    predictions = read_predictions(unread) if unread and read_predictions is not None else {}
    for cell_id, splits in predictions.items():
        for split in splits:
            name = chosen[cell_id]
            yield (cell_id, split.dataset), Score(name, METRICS[name].of(Answers.of(split)), None)


def _place(cell: Cell, evaluation: Evaluation) -> tuple[str, ...]:
    """Return a key that is equal for a cell and the zero-shot cell on the same test split."""
    return cell.track, cell.protocol.name, cell.backbone.name, cell.dataset.name, evaluation.dataset


def _same_images(evaluation: Evaluation, zero_shot: Evaluation) -> bool:
    """Return whether two evaluations are of the same images, judged by the zero-shot accuracy and the class sizes."""
    sizes, frozen_sizes = ([size for _, size in one.per_class] for one in (evaluation, zero_shot))
    return evaluation.accuracy_zero_shot == zero_shot.accuracy and sizes == frozen_sizes
