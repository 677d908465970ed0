"""Answers about single datasets, from the predictions that a store keeps with results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.analysis.one_dataset import correct_by_method
from orchestrator.analysis.rows import labels_of, row_list
from orchestrator.analysis.scores import ReadPredictions
from orchestrator.analysis.verdict import VerdictSeries
from orchestrator.report import arrange_results
from orchestrator.store import Store
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result
from tests.helpers import cells as samples
from tests.helpers.small_results import DATASETS, cell, grid, label, result

ACCURACIES = {"bolt": 90.0, "linear_probe": 50.0, "zero_shot": 0.0}


def stored(store: Store, results: Sequence[Result]) -> list[Result]:
    """Return the results with made-up predictions, which the store has."""
    made = []
    for number, each in enumerate(results):
        described, content = samples.predictions(each, seed=number)
        store.write_result(described, content)
        made.append(described)
    return made


def answers(results: Sequence[Result], read: ReadPredictions) -> tuple[VerdictSeries, ...]:
    return arrange_results(results=results, label_of=label, read_predictions=read).answers


def test_a_grid_with_one_dataset_gets_an_answer_about_that_dataset(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid(ACCURACIES, datasets=DATASETS[:1], seeds=(0, 1, 2)))
    over_datasets, on_dataset = answers(results, store.read_predictions)
    assert (over_datasets.dataset, on_dataset.dataset) == ("", DATASETS[0])
    assert {v.comparison.outcome for v in over_datasets.verdicts} == {"undecided"}
    assert [v.k for v in on_dataset.verdicts] == [1, 4]
    for verdict in on_dataset.verdicts:
        comparison = verdict.comparison
        assert (comparison.scope, comparison.best_set, comparison.n, comparison.images) == (
            "dataset",
            ("BOLT",),
            3,
            1000,
        )
        assert verdict.recommended == "BOLT"
        assert on_dataset.records()[0]["dataset"] == DATASETS[0]
        assert {s.method: s.seeds for s in comparison.methods}["Zero-shot"] == 0
        assert [s.mean for s in comparison.methods if s.method == "BOLT"] == [
            pytest.approx(np.mean([r.evaluations[0].accuracy for r in results if r.cell.method.name == "bolt"
                                   and r.cell.shots == verdict.k]))
        ]  # fmt: skip


def test_one_seed_speaks_for_its_support_images_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid(ACCURACIES, datasets=DATASETS[:1], seeds=(0,), ks=(4,)))
    _, on_dataset = answers(results, store.read_predictions)
    assert on_dataset.verdicts[0].comparison.scope == "draw"


def test_a_method_without_predictions_leaves_no_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid(ACCURACIES, datasets=DATASETS[:1], ks=(4,)))
    older = [replace(r, predictions=None) if r.cell.method.name == "bolt" else r for r in results]
    assert [answer.dataset for answer in answers(older, store.read_predictions)] == [""]


def test_predictions_are_not_read_where_datasets_are_compared() -> None:
    def read(results: Sequence[Result]) -> dict[str, tuple[StoredPredictions, ...]]:
        raise AssertionError("nothing is to be read")

    assert [answer.dataset for answer in answers(grid(ACCURACIES), read)] == [""]


def test_cells_that_were_scored_on_different_images_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, [result(cell(name), 60.0) for name in ("bolt", "linear_probe")])
    rows = row_list(results, labels_of((r.cell for r in results), label))
    read = store.read_predictions(results)
    assert correct_by_method(rows, read) is not None
    first = results[0].cell.id
    others = [replace(split, rows=np.arange(100, 200, dtype=np.uint32)) for split in read[first]]
    assert correct_by_method(rows, {**read, first: others}) is None
