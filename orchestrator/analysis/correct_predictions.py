"""The comparison of methods on one test split, from the predictions that the store keeps with results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.comparison import Comparison
from orchestrator.analysis.one_dataset import MIN_IMAGES, best_set_on_dataset
from orchestrator.analysis.rows import Row
from orchestrator.core.settings import SMALLEST_DIFFERENCE
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result

PredictionsOf = Callable[[Collection[str]], Mapping[str, Sequence[StoredPredictions]]]
"""``cell ids -> predictions by cell id``; cells without predictions are left out."""

ReadPredictions = Callable[[Sequence[Result]], Mapping[str, Sequence[StoredPredictions]]]
"""The same of results: :meth:`orchestrator.store.store.Store.read_predictions`."""


def predictions_by_id(results: Sequence[Result], read: ReadPredictions | None) -> PredictionsOf | None:
    """Reads the predictions of cells by their ids; ``None`` without ``read``."""
    if read is None:
        return None
    by_id = {result.cell.id: result for result in results}
    return lambda cell_ids: read([by_id[cell_id] for cell_id in cell_ids])


def correct_by_method(
    rows: Sequence[Row], predictions: Mapping[str, Sequence[StoredPredictions]]
) -> dict[str, dict[int, NDArray[np.bool_]]] | None:
    """Whether each test image was classified correctly, (N,), by method and seed.

    Args:
        rows: the rows of one test split under one track, protocol and backbone, at one k.
        predictions: of their cells. A cell without predictions is left out.

    Returns:
        ``None`` if the methods cannot be compared image by image: a method has no predictions at all, or the cells were
        scored on different images (a protocol can draw the support from the test split).
    """
    correct: dict[str, dict[int, NDArray[np.bool_]]] = {row.method: {} for row in rows}
    images = set()
    for row in rows:
        for split in predictions.get(row.cell_id, ()):
            if split.dataset == row.evaluated_on:
                correct[row.method][row.seed] = split.correct
                images.add((split.labels.tobytes(), b"" if split.rows is None else split.rows.tobytes()))
    return correct if len(images) == 1 and all(correct.values()) else None


def compare_on_dataset(
    rows: Sequence[Row],
    predictions: Mapping[str, Sequence[StoredPredictions]],
    *,
    without_seeds: Collection[str] = (),
    smallest_difference: float = SMALLEST_DIFFERENCE,
) -> Comparison | None:
    """The best set on one test split; ``None`` if there are no predictions to compare.

    Args:
        rows, predictions: as in :func:`correct_by_method`.
        without_seeds, smallest_difference: as in :func:`~orchestrator.analysis.one_dataset.best_set_on_dataset`.
    """
    correct = correct_by_method(rows, predictions)
    if correct is None or rows[0].total < MIN_IMAGES:
        return None
    return best_set_on_dataset(correct, without_seeds=without_seeds, smallest_difference=smallest_difference)
