"""Which test images each method classified correctly, from the predictions that the store keeps with results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.one_dataset import MIN_IMAGES
from orchestrator.analysis.rows import Row
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result

ReadPredictions = Callable[[Sequence[Result]], Mapping[str, Sequence[StoredPredictions]]]
"""``results -> predictions by cell id``, as :meth:`orchestrator.store.store.Store.read_predictions` gives them."""


def correct_by_method(
    rows: Sequence[Row], predictions: Mapping[str, Sequence[StoredPredictions]]
) -> dict[str, dict[int, NDArray[np.bool_]]] | None:
    """Whether each test image was classified correctly, (N,), by method and seed.

    Args:
        rows: the rows of one test split under one track, protocol and backbone, at one k.
        predictions: by cell id. A cell without predictions is left out.

    Returns:
        ``None`` if the methods cannot be compared image by image: a method has no predictions at all, there are fewer
        than two images, or the cells were scored on different images (a protocol can draw the support from the test
        split).
    """
    correct: dict[str, dict[int, NDArray[np.bool_]]] = {row.method: {} for row in rows}
    images = set()
    for row in rows:
        for split in predictions.get(row.cell_id, ()):
            if split.dataset == row.evaluated_on:
                correct[row.method][row.seed] = split.correct
                images.add((split.labels.tobytes(), b"" if split.rows is None else split.rows.tobytes()))
    comparable = len(images) == 1 and all(correct.values()) and rows[0].total >= MIN_IMAGES
    return correct if comparable else None
