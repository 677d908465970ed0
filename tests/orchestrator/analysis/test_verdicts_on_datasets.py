"""Verdicts on single datasets, from the stored predictions of results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.analysis.one_dataset import correct_by_method
from orchestrator.analysis.rows import labels_of, row_list
from orchestrator.analysis.scores import ReadPredictions, scores_of
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.store import Store
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result
from tests.helpers import cells as samples
from tests.helpers.small_results import DATASETS, arrange, cell, grid, label, result

ACCURACIES = {"bolt": 90.0, "linear_probe": 50.0, "zero_shot": 0.0}


def stored(store: Store, results: Sequence[Result]) -> list[Result]:
    made = []
    for number, each in enumerate(results):
        described, content = samples.predictions(each, seed=number)
        store.write_result(described, content)
        made.append(described)
    return made


def answers(results: Sequence[Result], read: ReadPredictions) -> tuple[VerdictSeries, ...]:
    return arrange(results, read_predictions=read).verdicts


def test_a_grid_with_one_dataset_gets_an_answer_about_that_dataset(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid(ACCURACIES, datasets=DATASETS[:1], seeds=(0, 1, 2)))
    over_datasets, on_dataset = answers(results, store.read_predictions)
    assert (over_datasets.dataset, on_dataset.dataset) == ("", DATASETS[0])
    assert {v.outcome for v in over_datasets.verdicts} == {"undecided"}
    assert [v.k for v in on_dataset.verdicts] == [1, 4]
    for verdict in on_dataset.verdicts:
        assert (verdict.scope, verdict.best_set) == ("dataset", ("BOLT",))
        assert (verdict.n, verdict.images) == (3, 1000)
        assert verdict.recommended == "BOLT"
        assert on_dataset.records()[0]["dataset"] == DATASETS[0]
        assert {s.method: s.seeds for s in verdict.methods}["Zero-shot"] == 0
        own = [r.evaluations[0].accuracy for r in results if (r.cell.method.name, r.cell.shots) == ("bolt", verdict.k)]
        assert verdict.methods[0].mean == pytest.approx(np.mean(own))


def test_one_seed_speaks_for_its_support_images_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid(ACCURACIES, datasets=DATASETS[:1], seeds=(0,), ks=(4,)))
    _, on_dataset = answers(results, store.read_predictions)
    assert on_dataset.verdicts[0].scope == "draw"


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
    rows = row_list(results, labels_of((r.cell for r in results), label), scores_of(results))
    read = store.read_predictions(results)
    assert correct_by_method(rows, read) is not None
    first = results[0].cell.id
    others = [replace(split, rows=np.arange(100, 200, dtype=np.uint32)) for split in read[first]]
    assert correct_by_method(rows, {**read, first: others}) is None


def test_an_imbalanced_dataset_is_judged_by_balanced_accuracy(tmp_path: Path) -> None:
    """The linear probe is right on nearly all images of the frequent class, and on few images of the rare class."""
    results = []
    for name, counts in {"bolt": (600, 180), "linear_probe": (790, 20)}.items():
        for seed in (0, 1, 2):
            one = result(cell(name, seed=seed, track="imbalanced"), 50.0)
            (scored,) = one.evaluations
            correct = sum(counts)
            scored = replace(
                scored, accuracy=correct / 10, correct=correct, per_class=((counts[0], 800), (counts[1], 200))
            )
            results.append(replace(one, evaluations=(scored,)))
    store = Store(tmp_path)
    _, on_dataset = answers(stored(store, results), store.read_predictions)
    comparison = on_dataset.verdicts[0]
    assert on_dataset.metric == "balanced_accuracy"
    assert comparison.best_set == ("BOLT",)
    assert [score.mean for score in comparison.methods] == [pytest.approx(82.5), pytest.approx(54.375)]
