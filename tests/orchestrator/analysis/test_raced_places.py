"""Races of a grid's places: which cells they want and leave out, and what a report says of them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.analysis.race import Look
from orchestrator.analysis.raced_places import RacedPlace, left_out_cells, raced_places, wanted_cells
from orchestrator.core.cell import Cell
from orchestrator.report.tables.whole_grid import cells_without_result_table, missing_table
from tests.helpers.small_results import DATASETS, arrange, cell, failure, label, result

GOOD = {"bolt": 80.0, "lora": 79.8, "linear_probe": 60.0, "coop": 40.0, "zero_shot": 50.0}


def planned(
    methods: Collection[str] = tuple(GOOD), ks: Sequence[int] = (1, 4), seeds: Sequence[int] = (1, 2)
) -> list[Cell]:
    cells = (cell(method, dataset, k, seed) for method in methods for dataset in DATASETS for k in ks for seed in seeds)
    return list(dict.fromkeys(cells))


def accuracies(cells: Sequence[Cell]) -> dict[str, float]:
    """Give each cell its method's accuracy with a little noise; at k = 1, the linear probe is as good as the best."""
    noise = np.random.default_rng(0).normal(0, 0.7, len(cells))
    means = [80.0 if (c.method.name, c.shots) == ("linear_probe", 1) else GOOD[c.method.name] for c in cells]
    return {c.id: round(mean + float(x), 1) for c, mean, x in zip(cells, means, noise, strict=True)}


def races(cells: Sequence[Cell], known: Mapping[str, float], failed: Collection[str] = ()) -> tuple[RacedPlace, ...]:
    labels = {one.id: label(one) for one in cells}
    return raced_places(cells, labels, known, failed, smallest_difference=1.0)


def run(cells: Sequence[Cell], failing: Collection[str] = ()) -> tuple[dict[str, float], int]:
    """Measure what the races want until they want nothing. Returns what is known, and in how many rounds."""
    truth, known = accuracies(cells), dict[str, float]()
    rounds = 0
    while todo := sorted(wanted_cells(cells, races(cells, known, failing)) - set(known) - set(failing)):
        known |= {one: truth[one] for one in todo}
        rounds += 1
    return known, rounds


def test_a_race_measures_a_part_and_leaves_out_what_is_settled() -> None:
    cells = planned()
    known, rounds = run(cells)
    found = races(cells, known)
    assert [(place.k, place.race.next) for place in found] == [(1, None), (4, None)]
    assert set(found[0].decisions) == {"Zero-shot", "coop"}
    assert set(found[1].decisions) == {"Zero-shot", "coop", "Linear probe"}
    assert rounds > 1
    left_out = left_out_cells(found)
    assert left_out == {one.id for one in cells} - set(known)
    measured = Counter((one.method.name, one.shots) for one in cells if one.id in known)
    assert measured["coop", 1] == measured["coop", 4] == measured["linear_probe", 4] == 5 < measured["linear_probe", 1]


def test_other_results_in_the_store_change_no_decision() -> None:
    cells = planned()
    known, _ = run(cells)
    everything = races(cells, accuracies(cells))
    assert [place.decisions for place in everything] == [place.decisions for place in races(cells, known)]


def test_a_failed_cell_stops_nothing() -> None:
    cells = planned()
    failing = {one.id for one in cells if (one.method.name, one.dataset.name) == ("bolt", "ants")}
    known, _ = run(cells, failing)
    assert all(place.race.next is None for place in races(cells, known, failing))
    assert any(place.race.next is not None for place in races(cells, known))


def test_a_result_without_a_score_is_waited_for_by_nobody() -> None:
    cells = planned()
    known, _ = run(cells)
    without = next(one for one in sorted(known) if "linear_probe" in one)
    kept = {one: value for one, value in known.items() if one != without}
    assert any(place.race.next is not None for place in races(cells, kept))
    assert all(place.race.next is None or without not in place.wanted for place in races(cells, kept, {without}))


def test_the_order_of_datasets_is_not_that_of_the_grid() -> None:
    cells = planned()
    other = races(cells[::-1], {})
    (first, _) = races(cells, {})
    assert {one.dataset.name for (_, d, _), one in first.cells.items() if d < 5} != set(DATASETS[:5])
    assert wanted_cells(cells, other) == wanted_cells(cells, races(cells, {}))


def test_cells_outside_races_are_all_wanted() -> None:
    alone = planned(["bolt"])
    assert races(alone, {}) == ()
    few = [one for one in planned() if one.dataset.name in DATASETS[:4]]
    assert races(few, {}) == ()
    shifted = [cell("bolt", "ants", track="ood", evaluate_on=DATASETS), cell("lora", "ants", track="ood")]
    assert wanted_cells(shifted, races(shifted, {})) == {one.id for one in shifted}


def test_a_report_of_a_race_says_so_and_calls_nothing_missing() -> None:
    cells = planned()
    known, _ = run(cells)
    results = [result(one, known[one.id]) for one in cells if one.id in known]
    raced = arrange(results, planned=cells, raced=races(cells, known))
    assert not raced.missing
    assert {one.id for one in raced.left_out} == {one.id for one in cells} - set(known)
    (answer,) = raced.verdicts
    verdict = answer.at(4)
    assert verdict.raced
    assert set(verdict.best_set) == {"BOLT", "lora"}
    assert "by a race: " in verdict.statement()
    assert raced.verdict_records()[0]["raced"]
    cut = {one: known[one] for one in list(known)[: len(known) // 2]}
    running = arrange([one for one in results if one.cell.id in cut], planned=cells, raced=races(cells, cut))
    assert "undecided, by a race that is not over: " in running.verdicts[0].verdicts[0].statement()
    plain = arrange(results, planned=cells)
    assert len(plain.missing) == len(raced.left_out)
    assert not plain.verdicts[0].verdicts[0].raced


def test_a_failed_cell_makes_no_gaps_of_the_cells_that_a_race_leaves_out() -> None:
    cells = planned()
    failing = {one.id for one in cells if (one.method.name, one.dataset.name, one.shots) == ("bolt", "ants", 4)}
    known, _ = run(cells, failing)
    results = [result(one, known[one.id]) for one in cells if one.id in known]
    raced = arrange(results, [*map(failure, failing)], planned=cells, raced=races(cells, known, failing))
    assert raced.left_out
    gaps, every = missing_table(raced), cells_without_result_table(raced)
    assert [[entry.text for entry in row[-4:]] for row in gaps.rows] == [["16", "14", "2", "0"]]
    assert {row[0].text for row in every.rows} == failing


def test_domains_that_race_have_no_verdict_on_all_of_them_together() -> None:
    cells = [replace(one, domain=domain) for domain in ("general", "aerial") for one in planned()]
    known = accuracies(cells)
    results = [result(one, known[one.id]) for one in cells]
    for raced, domains in ((races(cells, known), ["general", "aerial"]), ((), ["general", "aerial", ""])):
        arranged = arrange(results, planned=cells, raced=raced)
        assert [answer.place.domain for answer in arranged.verdicts] == domains


def test_a_line_says_how_a_race_stands() -> None:
    cells = planned()
    assert races(cells, {})[0].line == "general, fewshot, tiny at k = 1: 0 of 5 methods out"
    known, _ = run(cells)
    place = races(cells, known)[1]
    assert place.race.out_at[place.methods.index("coop")] == Look(5, 1)
    assert place.line.startswith("general, fewshot, tiny at k = 4: 3 of 5 methods out after 8 datasets")


@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_methods_without_seeds_have_one_cell_for_all_of_them(seeds: Sequence[int]) -> None:
    cells = planned(seeds=seeds)
    known, _ = run(cells)
    assert sum(one.method.name == "zero_shot" for one in cells if one.id in known) == 5
