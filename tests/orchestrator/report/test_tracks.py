"""Tracks: what the report shows of test-time adaptation, distribution shift and accuracy after epochs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bolt.protocol import STRICT, Protocol
from orchestrator.report.figures.curves import accuracy_after_epochs
from orchestrator.report.styles import DASH
from orchestrator.report.tables.accuracy import base_to_new_table, dataset_table, epochs_table, main_table, shift_table
from orchestrator.report.tables.formats import to_csv
from orchestrator.store.results import Result
from tests.helpers.small_results import DATASETS, ZERO_SHOT, arrange, base_to_new_result, cell, grid, result
from tests.orchestrator.report.test_claims import page_html, table_of


def at_test_time(method: str, dataset: str, seed: int, accuracy: float, protocol: Protocol = STRICT) -> Result:
    of = replace(cell(method, dataset, track="tta", protocol=protocol), shots=0, seed=seed)
    return result(of, accuracy)


def test_tracks_have_groups_tables_and_sentences_of_their_own() -> None:
    adapted = [at_test_time("bolt", dataset, seed, 90.0) for dataset in DATASETS for seed in (1, 2)]
    results = [*grid({"bolt": 60.0, "linear_probe": 55.0}), *adapted]
    arranged = arrange(results)
    assert [group.place.track for group in arranged.groups] == ["fewshot", "tta"]
    first, second = (group.mean("BOLT", group.ks[-1]) for group in arranged.groups)
    assert (first.mean, second.mean) == (pytest.approx(60 + 4 + 3.5 + 1.35), 90.0)
    assert page_html(arranged).count('class="headline"') == 2
    assert to_csv(table_of(arranged, "costs_tta")).splitlines()[1].endswith(",16")


def test_at_test_time_zero_shot_has_no_seeds_and_the_others_have() -> None:
    results = [at_test_time("zero_shot", d, 0, 50.0) for d in DATASETS]
    results += [at_test_time("bolt", d, seed, 60.0 + seed) for d in DATASETS for seed in (1, 2, 3)]
    arranged = arrange(results)
    (group,) = arranged.groups
    assert (group.ks, group.seed_counts, group.fixed) == ((0,), (3, 3), {"Zero-shot"})
    table = main_table(arranged, group)
    assert [row[1].plain for row in table.rows] == ["50.00", "62.00 ± 1.00 (+12.00)"]
    assert replace(table.rows[1][1], std=0.001).plain == "62.00 ± 0.00 (+12.00)"  # not as with one seed
    by_dataset = dataset_table(arranged, group, 0)
    assert by_dataset.rows[-1][0].text == "mean"
    assert [entry.text for entry in by_dataset.rows[-1][1:]] == ["50.00", "62.00"]


def shifted(method: str, seed: int, values: dict[str, tuple[float, float, float | None, float | None]]) -> Result:
    """Make a result. ``values``: by test set, accuracy and zero-shot accuracy among all classes, then among its own."""
    of = cell(method, "imagenet", 4, seed, track="ood", evaluate_on=tuple(values))
    made = result(of, *(value[0] for value in values.values()))
    evaluations = tuple(
        replace(
            evaluation,
            accuracy_zero_shot=zero_shot,
            accuracy_own_classes=own,
            accuracy_zero_shot_own_classes=own_zero_shot,
        )
        for evaluation, (_, zero_shot, own, own_zero_shot) in zip(made.evaluations, values.values(), strict=True)
    )
    return replace(made, evaluations=evaluations)


def test_shift_table_has_accuracy_among_all_classes_and_among_a_test_sets_own() -> None:
    results = [
        shifted(
            "bolt",
            seed,
            {
                "imagenet": (70.0, 60.0, None, None),
                "rare": (20.0 + seed, 10.0, 40.0 + 3 * seed, 30.0),
                "sketch": (50.0 + seed, 45.0, None, None),
            },
        )
        for seed in (1, 2)
    ]
    lacking = shifted("linear_probe", 1, {"rare": (22.0, 10.0, None, None), "sketch": (52.0, 45.0, None, None)})
    arranged = arrange([*results, lacking])
    (group,) = arranged.groups
    table = shift_table(arranged, group, 4)
    assert table.header == (
        *("method", "mean of shifted", "mean, own classes", "imagenet (target)", "rare", "rare, own classes"),
        "sketch",
    )
    row = next(row for row in table.rows if row[0].text == "BOLT")
    # Seeds: (21 + 51) / 2 = 36 and 37; own classes: (43 + 51) / 2 = 47 and (46 + 52) / 2 = 49, zero-shot 37.5.
    assert (row[1].value, row[1].std, row[1].gain) == (36.5, pytest.approx(math.sqrt(0.5)), 9.0)
    assert (row[2].value, row[2].std, row[2].gain) == (48.0, pytest.approx(math.sqrt(2)), 10.5)
    assert [entry.value for entry in row[3:]] == [70.0, 21.5, 44.5, 51.5]
    other = next(row for row in table.rows if row[0].text == "Linear probe")
    assert [entry.value for entry in (other[1], other[2], other[5])] == [37.0, None, None]


def learning(method: str, dataset: str, seed: int, curve: Sequence[float]) -> Result:
    made = result(cell(method, dataset, 4, seed, track="meta"), curve[-1] if curve else ZERO_SHOT)
    return replace(made, curves={"accuracy": tuple(curve)} if curve else {})


def test_accuracy_after_each_epoch_is_a_mean_over_targets_with_a_deviation_over_seeds() -> None:
    results = [
        learning("bolt", dataset, seed, [base + seed * 2 + epoch for epoch in range(1, 13)])
        for dataset, base in (("ants", 40.0), ("bees", 60.0))
        for seed in (1, 2)
    ]
    results += [learning("zero_shot", dataset, 0, []) for dataset in ("ants", "bees")]
    results += [learning("linear_probe", dataset, 1, [30.0]) for dataset in ("ants", "bees")]
    arranged = arrange(results)
    (group,) = arranged.groups
    table = epochs_table(arranged, group, 4)
    assert table.header == ("method", "epoch 1", "epoch 2", "epoch 5", "epoch 10", "epoch 12")
    by_label = {row[0].text: row[1:] for row in table.rows}
    assert [entry.value for entry in by_label["BOLT"]] == [54.0, 55.0, 58.0, 63.0, 65.0]
    assert by_label["BOLT"][0].std == pytest.approx(np.std([53.0, 55.0], ddof=1))
    assert [entry.text for entry in by_label["Zero-shot"]] == ["50.00"] * 5
    assert [entry.value for entry in by_label["Linear probe"]] == [30.0, None, None, None, None]
    figure = accuracy_after_epochs(arranged, group, 4)
    assert f"± one sample standard deviation over n = 1{DASH}2 seeds" in figure.caption
    fewshot = arrange(grid({"bolt": 60.0}))
    assert epochs_table(fewshot, fewshot.groups[0], 4) is None
    assert accuracy_after_epochs(fewshot, fewshot.groups[0], 4) is None


def test_a_verdict_over_test_sets_of_one_adaptation_is_about_its_support_images() -> None:
    """Of two equal methods, one was called the best in half of made-up draws: a seed moves all test sets together."""
    names = ("ants", "bees", "cats", "dogs", "elks", "foxes")
    results = [
        result(cell(method, "ants", seed=seed, track="cross_dataset", evaluate_on=names), *(more + i for i in range(6)))
        for method, more in (("bolt", 60.0), ("linear_probe", 50.0))
        for seed in (1, 2)
    ]
    (series, *_) = arrange(results).verdicts
    assert [verdict.same_supports for verdict in series.verdicts] == [True]
    assert series.verdicts[0].statement() == "best with these support images: BOLT"
    frozen = replace(results[0], cell=cell("zero_shot", "ants", 0, track="cross_dataset", evaluate_on=names))
    for others in (grid({"bolt": 60.0, "linear_probe": 50.0}), [frozen]):
        assert not arrange(others).verdicts[0].verdicts[0].same_supports


def test_means_across_datasets_are_not_called_shifted() -> None:
    of = cell("bolt", "ants", track="cross_dataset", evaluate_on=("ants", "bees"))
    arranged = arrange([result(of, 60.0, 40.0)])
    (group,) = arranged.groups
    assert "over 1 other dataset per seed" in main_table(arranged, group).note
    assert dataset_table(arranged, group, 4).rows[-1][0].text == "mean of others"


@pytest.mark.parametrize(
    ("scored", "counted"), [(("ants", "bees"), "9 of 10 classes"), (("bees", "cats"), "9 classes")]
)
def test_short_classes_are_counted_among_those_of_the_target(scored: tuple[str, ...], counted: str) -> None:
    """The other datasets have two classes here; the report said that 9 of 2 classes have too few images."""
    made = result(cell("bolt", "ants", track="cross_dataset", evaluate_on=scored), 60.0, 70.0)
    classes = {"ants": ((600, 1000), *[(0, 0)] * 9), "bees": ((700, 1000), (0, 0)), "cats": ((700, 1000), (0, 0))}
    evaluations = tuple(replace(one, per_class=classes[one.dataset]) for one in made.evaluations)
    arranged = arrange([replace(made, evaluations=evaluations, details={"short_classes": 9})])
    assert f"ants: {counted} have fewer than 4" in main_table(arranged, arranged.groups[0]).note
    assert [entry.text for entry in table_of(arranged, "short_classes").rows[0][-2:]] == ["9", counted[5:-8] or DASH]


def test_base_to_new_prints_both_groups_and_the_mean_of_the_harmonic_means() -> None:
    values = {"bolt": [(80.0, 40.0), (60.0, 60.0)], "zero_shot": [(50.0, 50.0), (50.0, 50.0)]}
    results = [
        base_to_new_result(cell(method, dataset, 4, 1, track="base_to_new"), base, new)
        for method, own in values.items()
        for dataset, (base, new) in zip(DATASETS, own, strict=False)
    ]
    arranged = arrange(results)
    (group,) = arranged.groups
    table = base_to_new_table(arranged, group, 4)
    printed = {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}
    assert printed["BOLT"] == ["70.00", "50.00", "56.67", "60.00"]
    assert main_table(arranged, group).rows[1][1].value == pytest.approx((160 / 3 + 60) / 2)
    assert group.dataset_count() == "2 datasets"
    assert "base_to_new" in page_html(arranged)
