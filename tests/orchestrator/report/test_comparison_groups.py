"""Rows and groups: what is averaged with what, and what is never mixed."""

import math
from dataclasses import replace

import pytest

from bolt.protocol import PUBLISHED
from orchestrator.analysis.rows import labels_of, row_list
from orchestrator.analysis.scores import scores_of
from orchestrator.core.cell import Cell, DatasetRef
from orchestrator.report.analysis import GridResults
from orchestrator.report.styles import DASH
from orchestrator.report.tables.accuracy import main_table
from tests.helpers.small_results import ZERO_SHOT, arrange, cell, grid, is_cell, label, result


def test_rows_hold_one_line_per_evaluation() -> None:
    of = cell("bolt", "imagenet", 4, track="ood", evaluate_on=("imagenet", "sketch"))
    published = {"sketch": 40.0}
    measured = [result(of, 61.0, 42.0)]
    rows = row_list(measured, {of.id: "BOLT"}, scores_of(measured), lambda row: published.get(row.evaluated_on))
    assert [(row.evaluated_on, row.gain, row.delta) for row in rows] == [("imagenet", 11, None), ("sketch", -8, 2)]
    assert {(row.method, row.cell_id) for row in rows} == {("BOLT", of.id)}


def test_cells_that_differ_are_never_averaged_under_one_label() -> None:
    rules = [cell("bolt", rule="leave_one_out"), cell("bolt", rule="leave_group_out")]
    assert set(labels_of(rules, label).values()) == {"BOLT [leave_one_out]", "BOLT [leave_group_out]"}
    settings = [cell("bolt", settings=(("top_k", k),)) for k in (5, 9)]
    assert len(set(labels_of(settings, label).values())) == 2
    digests = [replace(cell("bolt"), dataset=DatasetRef("ants", digest)) for digest in ("d0", "d1")]
    assert sorted(labels_of(digests, label).values()) == ["BOLT", "BOLT #2"]
    assert set(labels_of([cell("bolt", seed=0), cell("bolt", seed=1)], label).values()) == {"BOLT"}


def test_zero_shot_stands_at_every_k_without_a_deviation() -> None:
    (group,) = arrange(grid({"bolt": 60.0, "zero_shot": 0.0})).groups
    assert group.ks == (1, 4)
    assert group.fixed == {"Zero-shot"}
    assert group.methods[0] == "Zero-shot"
    for k in group.ks:
        mean = group.mean("Zero-shot", k)
        assert (mean.mean, mean.std, mean.n) == (ZERO_SHOT + 3.5, None, 1)


def test_domain_mean_by_hand() -> None:
    accuracies = {("ants", 0): 60.0, ("ants", 1): 70.0, ("bees", 0): 80.0, ("bees", 1): 84.0}
    results = [result(cell("bolt", dataset, 4, seed), accuracy) for (dataset, seed), accuracy in accuracies.items()]
    (group,) = arrange(results).groups
    mean, gain = group.mean("BOLT", 4), group.mean("BOLT", 4, lambda row: row.gain)
    assert (mean.mean, mean.n) == (73.5, 2)  # seeds: 70 and 77
    assert mean.std == pytest.approx(7 / math.sqrt(2))
    assert gain.mean == pytest.approx(23.5)


def test_shifted_test_sets_are_averaged_without_the_target() -> None:
    of = cell("bolt", "imagenet", 4, track="ood", evaluate_on=("imagenet", "sketch", "v2"))
    (group,) = arrange([result(of, 90.0, 40.0, 60.0)]).groups
    mean = group.mean("BOLT", 4)
    assert mean.mean == 50.0
    assert group.tests(4) == ("imagenet", "imagenet → sketch", "imagenet → v2")


def test_protocols_and_backbones_are_never_mixed() -> None:
    cells = [cell("bolt"), cell("bolt", protocol=PUBLISHED), cell("bolt", backbone="large")]
    groups = arrange([result(c, 60.0) for c in cells]).groups
    assert len(groups) == 3
    assert len({group.title for group in groups}) == 3


def test_a_missing_cell_is_a_dash_with_its_count_and_never_a_smaller_mean() -> None:
    results = [r for r in grid({"bolt": 60.0, "linear_probe": 55.0}) if not is_cell(r, "bolt", "hares", 4)]
    arranged = arrange(results, planned=[r.cell for r in grid({"bolt": 60.0, "linear_probe": 55.0})])
    (group,) = arranged.groups
    table = main_table(arranged, group)
    assert len(arranged.missing) == 2
    row = next(row for row in table.rows if row[0].text == "BOLT")
    assert row[2].text == f"{DASH} (7/8 datasets)"
    assert row[2].value is None
    (answer,) = arranged.verdicts
    verdict = answer.at(4)
    assert {score.method: score.n for score in verdict.methods} == {"BOLT": 7, "Linear probe": 8}


def test_a_number_over_fewer_seeds_says_so() -> None:
    results = [r for r in grid({"bolt": 60.0}) if not (is_cell(r, "bolt", "hares", 4) and r.cell.seed == 1)]
    arranged = arrange(results)
    entry = main_table(arranged, arranged.groups[0]).rows[0][2]
    assert (entry.remark, entry.std) == ("n = 1", None)
    assert "[n = 1]" in entry.plain


@pytest.mark.parametrize(("seeds", "counts"), [((2, 3), "n = 2)"), ((2,), "n = 1\N{EN DASH}2)"), ((0, 1), "n = 2)")])
def test_captions_count_the_seeds_of_a_method_and_not_of_all_methods(seeds: tuple[int, ...], counts: str) -> None:
    arranged = arrange(grid({"bolt": 60.0}, seeds=(0, 1)) + grid({"lora": 70.0}, seeds=seeds))
    (group,) = arranged.groups
    table = main_table(arranged, group)
    assert counts in table.note
    remarks = {row[0].code: row[1].remark for row in table.rows}
    assert remarks == {"BOLT": "", "lora": "" if len(seeds) > 1 else "n = 1"}


def test_ablations_on_some_datasets_stand_beside_their_method_on_the_same_cells() -> None:
    """In the domain's own table they once were rows of gaps."""
    whole = grid({"zero_shot": 0.0, "bolt": 60.0, "probe": 55.0})
    few = [result(cell("bolt", "ants", 4, 1, settings=(("top_k", 3),)), 58.0)]
    cells = [one.cell for one in (*whole, *few)]

    def named(one: Cell) -> str:
        return "rank 3" if one.method.settings else one.method.name

    arranged = GridResults(results=[*whole, *few], failures=[], planned=cells, label_of=named)
    main, ablations = arranged.groups
    assert "rank 3" not in main.methods
    assert ablations.methods == ("bolt", "rank 3")
    places = {(row.method, row.dataset, row.k, row.seed) for row in ablations.rows}
    assert places == {("bolt", "ants", 4, 1), ("rank 3", "ants", 4, 1)}
    assert ablations.title.endswith("ablations")
    assert main.mean("bolt", 4) == arrange(whole).groups[0].mean("BOLT", 4)


def test_methods_scored_on_other_images_are_named() -> None:
    results = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})
    fewer = [
        replace(r, evaluations=(replace(r.evaluations[0], total=90),)) if r.cell.method.name == "bolt" else r
        for r in results
    ]
    arranged = arrange([r for r in fewer if r.cell.shots in (0, 4) and r.cell.seed == 0])
    (group,) = arranged.groups
    assert group.scored_on_other_images == ("BOLT",)
    assert "other images than the rest: BOLT" in main_table(arranged, group).note
    assert arrange(results).groups[0].scored_on_other_images == ()
