"""Verdicts from rows: which rows are compared, at which places, and what is recommended."""

import json
from dataclasses import replace

import pytest

from bolt.methods import METHODS
from bolt.protocol import PUBLISHED, STRICT
from orchestrator.analysis.comparable import comparable_rows
from orchestrator.analysis.costs import PROMPT_SHARE
from orchestrator.analysis.metrics import METRICS
from orchestrator.analysis.rows import Row, row_list
from orchestrator.analysis.scores import Score
from orchestrator.analysis.verdict_series import verdicts_of
from orchestrator.core.cell import DatasetRef
from orchestrator.report import GridResults
from orchestrator.report.tables.accuracy import main_table
from orchestrator.tracks import TRACKS
from orchestrator.tracks.base_to_new import BASE_TO_NEW
from tests.helpers.small_results import DATASETS, arrange, base_to_new_result, cell, grid, label, result, terminal


def test_there_is_one_answer_for_each_domain_and_one_for_all_together() -> None:
    accuracies = {"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0}
    results = grid(accuracies, domain="general") + grid(accuracies, domain="aerial")
    answers = arrange(results).verdicts
    assert [answer.place.domain for answer in answers] == ["general", "aerial", ""]
    assert all([verdict.k for verdict in answer.verdicts] == [1, 4] for answer in answers)
    # The domains have the same names of datasets, and each of them counts.
    assert [answer.verdicts[0].n for answer in answers] == [8, 8, 16]
    assert {v.best_set for answer in answers for v in answer.verdicts} == {("BOLT",)}


@pytest.mark.parametrize(("ks", "together"), [((1,), [1]), ((1, 4), [1, 4]), ((16,), None)])
def test_all_domains_together_have_the_k_that_two_of_them_have(ks: tuple[int, ...], together: list[int] | None) -> None:
    accuracies = {"zero_shot": 50.0, "bolt": 70.0, "lora": 60.0}
    answers = arrange(grid(accuracies, ks=(1, 4)) + grid(accuracies, ks=ks, domain="aerial")).verdicts
    found = {answer.place.domain: [verdict.k for verdict in answer.verdicts] for answer in answers}
    assert found == {"general": [1, 4], "aerial": list(ks)} | ({} if together is None else {"": together})


def test_zero_shot_counts_where_others_were_measured_at_the_same_k() -> None:
    """It had every dataset at every k, so it stood first and was recommended where others lack most datasets."""
    results = [r for r in grid({"bolt": 60.0, "zero_shot": 0.0}) if r.cell.shots != 4 or r.cell.dataset.name == "ants"]
    arranged = arrange(results)
    (verdict,) = (series.at(4) for series in arranged.verdicts if not series.dataset)
    assert verdict is not None
    assert [(score.method, score.n) for score in verdict.methods] == [("BOLT", 1), ("Zero-shot", 1)]
    (group,) = arranged.groups
    assert verdict.methods[1].mean == getattr(group.mean("Zero-shot", 4), "mean", None)
    assert "Not every k has the same datasets" in main_table(arranged, group).note
    assert "Not every k has the same datasets" in terminal(arranged)
    assert "Not every k" not in terminal(arrange(grid({"bolt": 60.0, "zero_shot": 0.0})))


def test_base_and_new_classes_count_as_one_dataset_by_their_harmonic_mean() -> None:
    """A higher mean of the two groups with a lower harmonic mean does not win."""
    results = []
    for place, dataset in enumerate(DATASETS):
        results.append(base_to_new_result(cell("bolt", dataset, 4, 1, track="base_to_new"), 90.0 + place, 20.0))
        results.append(base_to_new_result(cell("linear_probe", dataset, 4, 1, track="base_to_new"), 50.0 + place, 50.0))
    (answer,) = arrange(results).verdicts
    comparison = answer.verdicts[0]
    assert (comparison.n, comparison.best_set) == (8, ("Linear probe",))
    means = {score.method: score.mean for score in comparison.methods}
    harmonic = [2 * (90 + place) * 20 / (110 + place) for place in range(8)]
    assert means["BOLT"] == pytest.approx(sum(harmonic) / 8)


def test_errors_of_base_and_new_classes_are_averaged_arithmetically() -> None:
    """A harmonic mean hides a large error behind a small one: of 0 and 40 it is 0. Nor is an error of 0 ``-0.0``."""
    cells = [cell(method, dataset, track="base_to_new") for method in ("bolt", "linear_probe") for dataset in DATASETS]
    results = [base_to_new_result(of, 80.0, 40.0) for of in cells]
    labels = {of.id: label(of) for of in cells}
    scores = {
        (of.id, name): Score("brier", value * (of.method.name == "bolt"), None)
        for of in cells
        for name, value in ((of.dataset.name, 20.0), ("base classes", 0.0), ("new classes", 40.0))
    }
    rows = [row for row in row_list(results, labels, scores) if row.averaged]
    assert {(row.method, row.evaluated_on, row.score) for row in rows} == {
        ("BOLT", "mean", 20.0), ("Linear probe", "mean", 0.0)
    }  # fmt: skip
    assert METRICS["brier"].averaged_on(BASE_TO_NEW) == "mean of the Brier score on base classes and new classes"
    records = [record for series in verdicts_of(rows) for record in series.records()]
    assert "-0.0" not in json.dumps(records)


def test_class_groups_without_a_mean_count_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a track with groups and no ``group_mean`` had no verdict."""
    monkeypatch.setitem(TRACKS, "base_to_new", replace(BASE_TO_NEW, group_mean=None))
    results = [base_to_new_result(cell("bolt", dataset, track="base_to_new"), 80.0, 40.0) for dataset in DATASETS]
    (answer,) = arrange(results).verdicts
    assert answer.verdicts[0].n == 3 * len(DATASETS)


def test_the_best_set_is_recommended_and_its_cheapest_named() -> None:
    (answer,) = arrange(grid({"bolt": 60.0, "linear_probe": 55.0})).verdicts
    assert [verdict.recommended for verdict in answer.verdicts] == ["BOLT", "BOLT"]
    assert "BOLT" in answer.recommendation()
    assert "Linear probe" not in answer.recommendation()
    assert answer.at(4) is answer.verdicts[1]
    assert answer.at(16) is None


def test_costs_are_medians_over_cells() -> None:
    results = grid({"bolt": 60.0}, ks=(4,), datasets=DATASETS[:3], seeds=(0,))
    results = [replace(r, trainable_parameters=n) for r, n in zip(results, (10, 20, 90), strict=True)]
    (answer,) = arrange(results).verdicts
    cost = answer.verdicts[0].costs["BOLT"]
    assert (cost.parameters, cost.seconds, cost.memory) == (20, 0.5, 100 * 2**20)


def test_operations_are_counted_from_the_cells_and_source_models_are_named() -> None:
    """Linear probe reads features of the support; LoRA takes each support image through the tower in each epoch."""
    results = grid({"linear_probe": 55.0, "lora": 60.0, "zero_shot": 0.0}, ks=(4,), datasets=DATASETS[:2])
    results += [result(cell("bolt", rule="leave_one_out"), 60.0)]
    results = [replace(r, support_size=0 if r.cell.method.name == "zero_shot" else 40) for r in results]
    (answer,) = arrange(results).verdicts
    costs = answer.verdicts[0].costs
    assert costs["Zero-shot"].operations == 0
    for shown, name in (("Linear probe", "linear_probe"), ("lora", "lora")):
        method = METHODS[name]
        settings = method.configure({})
        passes, last_view = method.tower_passes(40, settings), method.support_feature_views(settings)
        cached = 40 * (last_view + 1) if last_view is not None else 0
        assert costs[shown].operations == cached + passes.forward + method.training_forwards * passes.training > 0
        assert costs[shown].sources is False
    assert costs["BOLT"].sources


@pytest.mark.parametrize("track", ["base_to_new", "cross_dataset"])
def test_operations_are_those_on_the_classes_that_a_method_adapts_to(track: str) -> None:
    """Ten classes with four images each; the scored images have other classes too, or only others."""
    made = base_to_new_result(cell("lora", track=track, settings=(("towers", "both"),)), 60.0, 50.0)
    if track == "cross_dataset":
        made = result(replace(made.cell, evaluate_on=(DatasetRef("bees", "d0"),)), 60.0)
    (answer,) = arrange([replace(made, support_size=40)]).verdicts
    method = METHODS["lora"]
    passes = method.tower_passes(40, method.configure({"towers": "both"}))
    expected = method.training_forwards * (passes.training + PROMPT_SHARE * 10 * passes.text_training)
    assert answer.verdicts[0].costs["lora"].operations == pytest.approx(expected)
    assert passes.text_training > 0


def test_operations_are_those_of_the_epochs_that_a_method_chose() -> None:
    """CoOp trains for 50, 100 or 200 epochs by k. All cells were counted with 200."""
    made = replace(result(cell("coop"), 60.0), support_size=32, curves={"train_loss": (1.0,) * 50})
    (answer,) = arrange([made]).verdicts
    method = METHODS["coop"]
    passes, views = method.tower_passes(32, method.configure({"epochs": 50})), 1 + method.configure({}).views
    expected = 32 * views + method.training_forwards * PROMPT_SHARE * passes.text_training
    assert answer.verdicts[0].costs["coop"].operations == pytest.approx(expected)


def test_variants_planned_on_fewer_datasets_take_no_part() -> None:
    results = grid({"bolt": 60.0, "linear_probe": 55.0}, ks=(4,))
    variant = result(cell("bolt", "ants", settings=(("rank", 8),)), 99.0)

    def label_of(one) -> str:  # type: ignore[no-untyped-def]
        return label(one) + " (rank 8)" * bool(one.method.settings)

    (answer,) = GridResults(results=[*results, variant], label_of=label_of).verdicts
    assert [score.method for score in answer.verdicts[0].methods] == ["BOLT", "Linear probe"]


ROW = Row(
    track="ood", protocol="strict", backbone="tiny", domain="general", dataset="ants", evaluated_on="ants", k=4,
    method="bolt", method_name="bolt", seed=0, accuracy=90.0, accuracy_zero_shot=50.0, gain=40.0, metric="accuracy",
    score=90.0, score_zero_shot=50.0, total=100,
    trainable_parameters=7, fit_seconds=1.0, eval_seconds=1.0, peak_memory_mib=1.0, cell_id="a",
)  # fmt: skip


def test_protocols_that_change_another_one_take_no_part() -> None:
    changed = replace(ROW, protocol="strict+sigma_sign=relu")
    assert comparable_rows([ROW, changed], ()) == [ROW]
    assert comparable_rows([changed], ()) == [changed]


@pytest.mark.parametrize("elsewhere", [{"domain": "aerial"}, {"track": "tta"}, {"backbone": "large"}])
def test_a_changed_protocol_without_its_base_stands_for_itself(elsewhere: dict[str, str]) -> None:
    """For example, one domain was published under other switches."""
    changed = replace(ROW, protocol="published+activation=as_trained", **elsewhere)  # type: ignore[arg-type]
    base = replace(ROW, protocol="published")
    assert comparable_rows([base, changed], ()) == [base, changed]


def test_groups_and_verdicts_of_a_changed_protocol_stand_where_its_base_is_not() -> None:
    changed = PUBLISHED.with_switches(activation="as_trained")
    accuracies = {"bolt": 60.0, "linear_probe": 55.0}
    results = [
        replace(one, cell=replace(one.cell, protocol=protocol))
        for domain, protocol in (("general", PUBLISHED), ("aerial", changed))
        for one in grid(accuracies, ks=(4,), domain=domain)
    ]
    arranged = arrange(results)
    places = {(answer.place.protocol, answer.place.domain) for answer in arranged.verdicts}
    assert places == {("published", "general"), (changed.name, "aerial")}
    assert len(arranged.main_groups) == 2


def test_answers_are_marked_by_their_own_track() -> None:
    """Alpha sees test labels only on the track tta, so few-shot verdicts of the same protocol are not marked."""
    seeing = STRICT.with_switches(tta_alpha="test_labels")
    results = [result(cell("bolt", name, protocol=seeing), 60.0) for name in DATASETS]
    results += [result(cell("bolt", name, protocol=seeing, track="tta", k=0), 60.0) for name in DATASETS]
    arranged = arrange(results)
    marked = {answer.place.track: arranged.selects_on_test(answer) for answer in arranged.verdicts}
    assert marked == {"fewshot": False, "tta": True}
    assert {row.selects_on_test for row in arranged.rows if row.track == "fewshot"} == {False}


def test_out_of_distribution_the_target_itself_does_not_count() -> None:
    shifted = replace(ROW, evaluated_on="bees", score=70.0)
    (answer,) = verdicts_of([ROW, shifted])
    (score,) = answer.verdicts[0].methods
    assert (score.mean, score.n) == (pytest.approx(70.0), 1)
