"""What the page, the terminal and ``verdict.json`` claim about odd sets of results."""

import html
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bolt.protocol import STRICT
from orchestrator.analysis.rows import SourceRow
from orchestrator.report.analysis import GridResults
from orchestrator.report.page.report_page import render_page
from orchestrator.report.registry import report_tables
from orchestrator.report.tables.table import Table
from orchestrator.report.write import all_of
from orchestrator.store import Store
from orchestrator.store.results import Result
from tests.helpers.small_results import DATASETS, arrange, base_to_new_result, cell, grid, result, terminal, under
from tests.orchestrator.analysis.test_verdicts_on_datasets import stored


def page_html(results: GridResults) -> str:
    """Return the page without figures, which take most of a report's time."""
    return render_page(results, report_tables(results), {group: defaultdict(list) for group in results.groups})


def page_of(results: GridResults) -> str:
    """Return the words of the page, without figures."""
    page = page_html(results)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page[page.index("<header>") :])))


def table_of(results: GridResults, start: str) -> Table:
    return next(table for table in all_of(report_tables(results)) if table.name.startswith(start))


def on_one_dataset(folder: Path, results: Sequence[Result]) -> GridResults:
    store = Store(folder)
    return arrange(stored(store, results), read_predictions=store.read_predictions)


def test_a_method_without_seeds_lacks_no_seed(tmp_path: Path) -> None:
    accuracies = {"bolt": 46.0, "linear_probe": 45.0, "zero_shot": 0.0}
    arranged = on_one_dataset(tmp_path, grid(accuracies, datasets=DATASETS[:1], seeds=(0, 1, 2), ks=(4,)))
    (verdict,) = arranged.shown_verdicts[0].verdicts
    assert {score.method: score.n for score in verdict.methods}["Zero-shot"] == 1
    page = page_of(arranged)
    assert "3 seeds" in page
    assert "1 of 3 seeds" not in page
    assert " ants Use " in page  # a dataset's name stays as it is
    header = table_of(arranged, "verdict_fewshot_general_tiny_strict_ants").header
    assert header == ("method", "verdict", "mean", "difference", "from", "to", "seeds")


def test_one_draw_of_one_dataset_says_what_it_is_about(tmp_path: Path) -> None:
    accuracies = {"bolt": 90.0, "linear_probe": 50.0}
    one_seed = on_one_dataset(tmp_path, grid(accuracies, datasets=DATASETS[:1], seeds=(0,), ks=(4,)))
    assert "one seed on one dataset: true for these support images only" in terminal(one_seed)
    assert "if the words below the numbers say so, on this one dataset" in page_of(one_seed)
    assert "these support images" not in terminal(arrange(grid(accuracies)))


def test_an_unknown_difference_is_no_first_place() -> None:
    results = grid({"bolt": 63.0, "linear_probe": 60.0}, ks=(4,), seeds=(0, 1))
    apart = [r for r in results if r.cell.seed == (r.cell.method.name == "bolt")]
    arranged = arrange(apart)
    page = page_of(arranged)
    assert "Use BOLT at k = 4, but Linear probe may be as good." in page
    assert len(re.findall(r"\d first ", page)) == 1


def test_one_of_a_thing_is_singular() -> None:
    results = grid({"bolt": 63.0, "linear_probe": 60.0}, ks=(4,), datasets=DATASETS[:1], seeds=(0,))
    sources = [SourceRow("tiny", "general", "owls", 50.0, 90.0, 500)]
    planned = [r.cell for r in results]
    arranged = arrange(results[:1], planned=planned, sources=sources)
    page = page_of(arranged)
    assert " 1 test split " in page
    assert "1 source reaches 90.00 per cent on its own task" in page
    assert "1 of 2 planned cells was not run" in terminal(arranged)
    note = table_of(arranged, "verdict").note
    assert note.endswith("matters: 1 point. With fewer than 5 datasets, no method is excluded.")
    complete = arrange(results[:1], planned=planned[:1], smallest_difference=0.5)
    assert "Nothing: the only cell is finished." in page_of(complete)
    assert table_of(complete, "verdict").note.split(". With")[0].endswith("matters: 0.5 points")


def test_a_metric_of_which_lower_is_better_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = stored(store, grid({"bolt": 70.0, "linear_probe": 60.0}, ks=(4,)))
    arranged = arrange(results, read_predictions=store.read_predictions, metric="brier")
    page = page_of(arranged)
    assert page.count("Mean Brier score in per cent (lower is better)") >= 3
    assert "; lower is better" in terminal(arranged)
    note = table_of(arranged, "verdict").note
    assert "Difference: the lead in points over the first method" in note
    assert "lower is better" not in terminal(arrange(results))


def test_the_harmonic_mean_is_not_called_accuracy() -> None:
    cells = [cell(method, dataset, track="base_to_new") for method in ("bolt", "linear_probe") for dataset in DATASETS]
    results = [base_to_new_result(of, 80.0 if of.method.name == "bolt" else 60.0, 40.0) for of in cells]
    arranged = arrange(results)
    name = "armonic mean of the accuracy on base classes and new classes"
    page = page_of(arranged)
    assert f"Mean h{name} in per cent method" in page
    assert "53.33" in page  # 2 x 80 x 40 / 120
    assert f"H{name} by method and shots" in terminal(arranged)
    assert f" {3 * len(DATASETS)} test splits " in page


def test_verdicts_that_test_labels_may_have_chosen_say_so() -> None:
    results = grid({"bolt": 70.0, "linear_probe": 60.0}, ks=(4,))
    chosen = under(replace(STRICT, name="published", config_selection="best_on_test"), results)
    records = arrange([*results, *chosen]).verdict_records()
    assert {record["protocol"]: record["selects_on_test"] for record in records} == {"strict": False, "published": True}


def test_images_per_class_are_never_a_power_of_ten() -> None:
    """Between k = 128 and 256, BOLT has the other's 44 % at k = 137; the next point of the grid is 140."""
    results = [
        replace(r, evaluations=result(r.cell, 30 + 0.1 * k if r.cell.method.name == "bolt" else 44.0).evaluations)
        for k in (64, 128, 256)
        for r in grid({"bolt": 70.0, "linear_probe": 60.0}, ks=(k,))
    ]
    table = table_of(arrange(results), "data_efficiency")
    assert table.rows[0][2].text == "140 (140 to 140)"
