"""The report: its statistics against hand and SciPy, and a page that hides nothing and claims nothing too much."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bolt.protocol import PUBLISHED, STRICT, Protocol
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.report import SourceRow, rows_of, terminal_summary, write_report
from orchestrator.report import write as report_write
from orchestrator.report.analysis.rows import labels_of
from orchestrator.report.analysis.statistics import summarize
from orchestrator.report.analysis.study import base_protocol, study_of
from orchestrator.report.analysis.switch_effects import effects_of
from orchestrator.report.analysis.verdict import headline, verdicts_of
from orchestrator.report.figures import accuracy_after_epochs, accuracy_against_k, by_dataset, dataset_bars
from orchestrator.report.figures.drawing import inline_svg
from orchestrator.report.styles import NEUTRAL, styles_of
from orchestrator.report.tables.comparison import dataset_table, main_table, pairs_table, ranks_table
from orchestrator.report.tables.distribution_shift import shift_table
from orchestrator.report.tables.epochs import epochs_table
from orchestrator.report.tables.formats import latex_escape, to_csv, to_html, to_latex, to_markdown
from orchestrator.report.tables.switch_effects import effects_table
from orchestrator.report.tables.table import Entry, Table, marked, measured, word
from orchestrator.report.tables.variants import ablation_tables
from orchestrator.report.text import DASH, signed
from orchestrator.store.results import Evaluation, Failure, Manifest, Result, Timings

TITLES = {"zero_shot": "Zero-shot", "bolt": "BOLT", "linear_probe": "Linear probe"}
DATASETS = ("ants", "bees", "cats", "dogs", "elks", "foxes", "goats", "hares")
ZERO_SHOT = 50.0
TOTAL = 1000


def label(cell: Cell) -> str:
    return TITLES.get(cell.method.name, cell.method.name)


def cell(
    method: str,
    dataset: str = "ants",
    k: int = 4,
    seed: int = 0,
    *,
    domain: str = "general",
    track: str = "fewshot",
    evaluate_on: Sequence[str] = (),
    settings: tuple[tuple[str, object], ...] = (),
    rule: str = "none",
    protocol: Protocol = STRICT,
    backbone: str = "tiny",
) -> Cell:
    k, seed = (0, 0) if method == "zero_shot" else (k, seed)
    return Cell(
        track=track,
        protocol=protocol,
        backbone=BackboneRef(backbone, "b0"),
        domain=domain,
        dataset=DatasetRef(dataset, "d0"),
        evaluate_on=tuple(DatasetRef(name, "d0") for name in evaluate_on or (dataset,)),
        sources_rule=rule,
        sources=(SourceRef("owls", "s0"),) if rule != "none" else (),
        shots=k,
        method=MethodRef(method, 1, settings),
        seed=seed,
    )


def result(of: Cell, *accuracies: float, zero_shot: float = ZERO_SHOT) -> Result:
    manifest = Manifest(
        "c0ffee1234567890", False, {"torch": "2.8.0"}, "a processor", 1, (), "2026-01-02T03:04:05+00:00"
    )
    evaluations = tuple(
        Evaluation(ref.name, accuracy, round(accuracy * TOTAL / 100), TOTAL, zero_shot, ((round(accuracy), 100),))
        for ref, accuracy in zip(of.evaluate_on, accuracies, strict=True)
    )
    return Result(of, evaluations, 7 if of.shots else 0, Timings(0.1, 0.5, 0.2), 100.0, of.shots, manifest)


def grid(
    accuracies: dict[str, float],
    *,
    datasets: Sequence[str] = DATASETS,
    ks: Sequence[int] = (1, 4),
    seeds: Sequence[int] = (0, 1),
    domain: str = "general",
) -> list[Result]:
    """A result of every cell: a method's accuracy plus its k, a bit per dataset and, by seed, plus or minus one."""
    results = []
    for method, accuracy in accuracies.items():
        for i, dataset in enumerate(datasets):
            if method == "zero_shot":
                results.append(result(cell(method, dataset, domain=domain), ZERO_SHOT + i, zero_shot=ZERO_SHOT + i))
                continue
            for k in ks:
                for seed in seeds:
                    value = accuracy + k + i + 2 * seed * (1 + 0.1 * i)
                    results.append(
                        result(cell(method, dataset, k, seed, domain=domain), value, zero_shot=ZERO_SHOT + i)
                    )
    return results


def study(results: Sequence[Result], failures: Sequence[Failure] = (), planned: Sequence[Cell] | None = None):  # type: ignore[no-untyped-def]
    cells = [r.cell for r in results] if planned is None else planned
    return study_of(results=results, failures=failures, planned=cells, label_of=label)


def write(folder: Path, results: Sequence[Result], **changes: object):  # type: ignore[no-untyped-def]
    arguments: dict[str, object] = {
        "grid_name": "demo",
        "title": "A grid",
        "description": "For the tests.",
        "results": results,
        "failures": (),
        "planned": [r.cell for r in results],
        "label_of": label,
        "folder": folder,
    }
    return write_report(**{**arguments, **changes})  # type: ignore[arg-type]


# --- rows and panels ----------------------------------------------------------------------------------------------


def test_rows_hold_one_line_per_evaluation() -> None:
    of = cell("bolt", "imagenet", 4, track="ood", evaluate_on=("imagenet", "sketch"))
    frame = rows_of([result(of, 61.0, 42.0)], label, lambda row: 40.0 if row.evaluated_on == "sketch" else None)
    assert list(frame["evaluated_on"]) == ["imagenet", "sketch"]
    assert list(frame["gain"]) == [11.0, -8.0]
    assert frame["delta"].tolist()[1] == pytest.approx(2.0)
    assert math.isnan(frame["delta"].tolist()[0])
    assert (frame["method"] == "BOLT").all()
    assert set(frame["cell_id"]) == {of.id}


def test_no_results_give_an_empty_frame_with_its_columns() -> None:
    assert "accuracy_zero_shot" in rows_of([], label).columns


def test_cells_that_differ_are_never_averaged_under_one_label() -> None:
    rules = [cell("bolt", rule="leave_one_out"), cell("bolt", rule="leave_group_out")]
    assert set(labels_of(rules, label).values()) == {"BOLT [leave_one_out]", "BOLT [leave_group_out]"}
    settings = [cell("bolt", settings=(("top_k", k),)) for k in (5, 9)]
    assert len(set(labels_of(settings, label).values())) == 2
    digests = [replace(cell("bolt"), dataset=DatasetRef("ants", digest)) for digest in ("d0", "d1")]
    assert sorted(labels_of(digests, label).values()) == ["BOLT", "BOLT #2"]
    assert set(labels_of([cell("bolt", seed=0), cell("bolt", seed=1)], label).values()) == {"BOLT"}


def test_zero_shot_stands_at_every_k_without_a_deviation() -> None:
    (panel,) = study(grid({"bolt": 60.0, "zero_shot": 0.0})).panels
    assert panel.ks == (1, 4)
    assert panel.fixed == {"Zero-shot"}
    assert panel.methods[0] == "Zero-shot"
    for k in panel.ks:
        mean = panel.mean("Zero-shot", k).accuracy
        assert mean is not None
        assert (mean.mean, mean.std, mean.n) == (ZERO_SHOT + 3.5, None, 1)


def test_domain_mean_by_hand() -> None:
    results = [
        result(cell("bolt", dataset, 4, seed), accuracy)
        for (dataset, seed), accuracy in {
            ("ants", 0): 60.0,
            ("ants", 1): 70.0,
            ("bees", 0): 80.0,
            ("bees", 1): 84.0,
        }.items()
    ]
    (panel,) = study(results).panels
    mean = panel.mean("BOLT", 4)
    assert mean.accuracy is not None
    assert mean.gain is not None
    assert (mean.accuracy.mean, mean.accuracy.n) == (73.5, 2)  # seeds: 70 and 77
    assert mean.accuracy.std == pytest.approx(7 / math.sqrt(2))
    assert mean.gain.mean == pytest.approx(23.5)


def test_shifted_test_sets_are_averaged_without_the_target() -> None:
    of = cell("bolt", "imagenet", 4, track="ood", evaluate_on=("imagenet", "sketch", "v2"))
    (panel,) = study([result(of, 90.0, 40.0, 60.0)]).panels
    mean = panel.mean("BOLT", 4).accuracy
    assert mean is not None
    assert mean.mean == 50.0
    assert panel.tests(4) == ("imagenet", "imagenet → sketch", "imagenet → v2")


def test_protocols_and_backbones_are_never_mixed() -> None:
    cells = [cell("bolt"), cell("bolt", protocol=PUBLISHED), cell("bolt", backbone="large")]
    panels = study([result(c, 60.0) for c in cells]).panels
    assert len(panels) == 3
    assert len({panel.title for panel in panels}) == 3


def test_a_missing_cell_is_a_dash_with_its_count_and_never_a_smaller_mean() -> None:
    results = [r for r in grid({"bolt": 60.0, "linear_probe": 55.0}) if not _is(r, "bolt", "hares", 4)]
    arranged = study(results, planned=[r.cell for r in grid({"bolt": 60.0, "linear_probe": 55.0})])
    (panel,) = arranged.panels
    table = main_table(panel, styles_of(arranged.method_names))
    assert len(arranged.missing) == 2
    row = next(row for row in table.rows if row[0].text == "BOLT")
    assert row[2].text == f"{DASH} (7/8 datasets)"
    assert row[2].value is None
    assert panel.ranking(4)[0][0] == "Linear probe"
    assert "7 of 8 datasets" in next(v for v in verdicts_of(panel) if v.k == 4).left_out
    assert ranks_table(panel, styles_of(arranged.method_names)).rows[0][2].text == DASH


def test_a_number_over_fewer_seeds_says_so() -> None:
    results = [r for r in grid({"bolt": 60.0}) if not (_is(r, "bolt", "hares", 4) and r.cell.seed == 1)]
    arranged = study(results)
    entry = main_table(arranged.panels[0], styles_of(arranged.method_names)).rows[0][2]
    assert (entry.aside, entry.spread) == ("n = 1", None)
    assert "[n = 1]" in entry.plain


def _is(r: Result, method: str, dataset: str, k: int) -> bool:
    return (r.cell.method.name, r.cell.dataset.name, r.cell.shots) == (method, dataset, k)


# --- words --------------------------------------------------------------------------------------------------------


def test_the_verdict_names_the_winner_its_lead_and_the_test() -> None:
    (panel,) = study(grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})).panels
    verdict = verdicts_of(panel)[1]
    assert (verdict.k, verdict.best, verdict.belief) == (4, ("BOLT",), "supported")
    assert verdict.lead.startswith("5.00 points ahead of Linear probe")
    assert "8 wins, 0 ties and 0 losses" in verdict.lead
    assert "p = 0.0078, 0.023 after Holm's correction for 3 pairs" in verdict.why
    assert headline(verdicts_of(panel)).startswith("BOLT has the highest mean accuracy in 2 of 2")


def test_a_single_seed_claims_nothing(tmp_path: Path) -> None:
    results = grid({"bolt": 80.0, "linear_probe": 55.0, "zero_shot": 0.0}, seeds=(0,))
    (panel,) = study(results).panels
    assert {v.belief for v in verdicts_of(panel)} == {"untested"}
    page = write(tmp_path, results).page.read_text(encoding="utf-8")
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    assert 'class="badge supported"' not in text
    assert "is significant" not in text
    assert ">significant<" not in text
    assert "One seed" in text
    assert "±" not in re.sub(r"<figcaption>.*?</figcaption>", "", text, flags=re.DOTALL)


def test_a_grid_too_small_for_its_pairs_says_so() -> None:
    names = {f"m{i}": 60.0 - i for i in range(6)}
    (panel,) = study(grid(names)).panels
    verdict = verdicts_of(panel)[0]
    assert verdict.belief == "too_small"
    assert "too small to settle" in verdict.why
    assert "too small for a test" in headline(verdicts_of(panel))


def test_level_methods_share_the_win() -> None:
    (panel,) = study(grid({"bolt": 60.0, "linear_probe": 60.0})).panels
    verdict = verdicts_of(panel)[0]
    assert verdict.best == ("BOLT", "Linear probe")
    assert verdict.lead.startswith("Level with")
    assert verdict.belief != "supported"


# --- formats ------------------------------------------------------------------------------------------------------


def sample() -> Table:
    rows = [
        [word("a_b & 50%"), measured(summarize([70.0, 72.0]), gain=-1.5)],
        [word("x|y"), measured(summarize([65.0]), seeds=2)],
        [word("none"), measured(None, missing="(1/8)")],
    ]
    column = marked([row[1] for row in rows])
    return Table(
        "sample", "A title", "A note.", ("method", "k = 1"), tuple((r[0], e) for r, e in zip(rows, column, strict=True))
    )


def test_latex_is_escaped_and_marked() -> None:
    text = to_latex(sample())
    assert r"a\_b \& 50\% & \textbf{71.00}{\scriptsize$\,\pm\,$1.41} {\scriptsize($-$1.50)} \\" in text
    assert r"x\textbar{}y & \underline{65.00} {\scriptsize[n = 1]} \\" in text
    assert r"none & -- (1/8) \\" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert latex_escape(r"\ { } ~ ^ # $") == (r"\textbackslash{} \{ \} \textasciitilde{} \textasciicircum{} \# \$")


def test_csv_holds_numbers_in_columns_of_their_own() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(sample()))))
    assert rows[0] == ["method", "k = 1", "k = 1 std", "k = 1 n", "k = 1 gain"]
    assert rows[1] == ["a_b & 50%", "71", "1.414214", "2", "-1.5"]
    assert rows[3] == ["none", "", "", "", ""]


def test_markdown_marks_and_escapes() -> None:
    text = to_markdown(sample())
    assert f"**71.00 ± 1.41 ({signed(-1.5)})**" in text
    assert "<ins>65.00" in text
    assert r"x\|y" in text


def test_html_is_escaped() -> None:
    table = Table("t", "<i>", "", ("<b>",), ((word("<script>alert(1)</script>", note='"'),),))
    html = to_html(table)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert 'title="&#34;"' in html


def test_marks_follow_the_printed_digits() -> None:
    entries = [Entry("", value=value) for value in (70.001, 70.004, 69.0, 60.0)]
    assert [e.mark for e in marked(entries)] == ["best", "best", "second", ""]
    assert [e.mark for e in marked([Entry("", value=1.0)])] == [""]
    assert [e.mark for e in marked([Entry("", value=1.0), Entry("", value=1.0)])] == ["", ""]


def test_dataset_table_closes_with_mean_and_rank() -> None:
    arranged = study(grid({"bolt": 60.0, "linear_probe": 55.0}))
    table = dataset_table(arranged.panels[0], 4, styles_of(arranged.method_names))
    assert table.closing == 2
    assert [row[0].text for row in table.rows[-2:]] == ["mean", "average rank (8 datasets)"]
    assert [entry.text for entry in table.rows[-1][1:]] == ["1.00", "2.00"]


def test_pairs_are_sorted_from_the_winner_down() -> None:
    arranged = study(grid({"linear_probe": 55.0, "bolt": 60.0}))
    row = pairs_table(arranged.panels[0], 4).rows[0]
    assert [entry.text for entry in row[:4]] == ["BOLT", "Linear probe", "significant", "+5.00"]


# --- figures ------------------------------------------------------------------------------------------------------


def test_a_method_keeps_its_colour_from_grid_to_grid() -> None:
    small = styles_of({"BOLT": "bolt", "Zero-shot": "zero_shot"})
    large = styles_of({f"m{i}": f"m{i}" for i in range(20)} | {"BOLT": "bolt", "Zero-shot": "zero_shot"})
    assert small["BOLT"] == large["BOLT"]
    assert small["Zero-shot"].colour == large["Zero-shot"].colour == NEUTRAL
    assert len(set(large.values())) == len(large)
    ablation = styles_of({"BOLT": "bolt", "BOLT (top 9)": "bolt"})
    assert ablation["BOLT"] == small["BOLT"] != ablation["BOLT (top 9)"]


def test_figures_are_the_same_each_time_and_take_the_pages_colours() -> None:
    arranged = study(grid({"bolt": 60.0, "cost_$x^2$": 55.0, "_hidden": 51.0, "zero_shot": 0.0}))
    (panel,), styles = arranged.panels, styles_of(arranged.method_names)
    first, second = accuracy_against_k(panel, styles), accuracy_against_k(panel, styles)
    assert first is not None
    assert first == second
    assert "cost_$x^2$" in first.svg
    assert "hidden" in first.svg
    assert "n = 2 seeds" in first.caption
    inline = inline_svg(first)
    assert "http" not in inline
    assert "currentColor" in inline
    assert not re.search(r'href="#(?!accuracy_)', inline)
    bars = dataset_bars(panel, 4, styles)
    assert bars is not None
    assert bars.png.startswith(b"\x89PNG")


def test_one_seed_has_no_band_and_one_k_no_line() -> None:
    arranged = study(grid({"bolt": 60.0}, seeds=(0,)))
    figure = accuracy_against_k(arranged.panels[0], styles_of(arranged.method_names))
    assert figure is not None
    assert "no band" in figure.caption
    arranged = study(grid({"bolt": 60.0}, ks=(4,)))
    assert accuracy_against_k(arranged.panels[0], styles_of(arranged.method_names)) is None


# --- tracks -------------------------------------------------------------------------------------------------------


def at_test_time(method: str, dataset: str, seed: int, accuracy: float, protocol: Protocol = STRICT) -> Result:
    of = replace(cell(method, dataset, track="tta", protocol=protocol), shots=0, seed=seed)
    return result(of, accuracy)


def test_tracks_have_panels_tables_and_sentences_of_their_own(tmp_path: Path) -> None:
    adapted = [at_test_time("bolt", dataset, seed, 90.0) for dataset in DATASETS for seed in (1, 2)]
    results = [*grid({"bolt": 60.0, "linear_probe": 55.0}), *adapted]
    arranged = study(results)
    assert [panel.key.track for panel in arranged.panels] == ["fewshot", "tta"]
    first, second = (panel.mean("BOLT", panel.ks[-1]).accuracy for panel in arranged.panels)
    assert first is not None
    assert second is not None
    assert (first.mean, second.mean) == (pytest.approx(60 + 4 + 3.5 + 1.35), 90.0)
    page = write(tmp_path, results).page.read_text(encoding="utf-8")
    assert page.count('class="headline"') == 2
    costs = (tmp_path / "tables" / "costs_tta.csv").read_text(encoding="utf-8").splitlines()
    assert costs[1].endswith(",16")


def test_at_test_time_zero_shot_stays_a_line_and_the_others_have_seeds() -> None:
    results = [at_test_time("zero_shot", d, 0, 50.0) for d in DATASETS]
    results += [at_test_time("bolt", d, seed, 60.0 + seed) for d in DATASETS for seed in (1, 2, 3)]
    arranged = study(results)
    (panel,) = arranged.panels
    assert (panel.ks, panel.seeds, panel.fixed) == ((0,), (1, 2, 3), {"Zero-shot"})
    table = main_table(panel, styles_of(arranged.method_names))
    assert [row[1].plain for row in table.rows] == ["50.00", "62.00 ± 1.00 (+12.00)"]
    by_dataset = dataset_table(panel, 0, styles_of(arranged.method_names))
    assert [row[0].text for row in by_dataset.rows[-2:]] == ["mean", "average rank (8 datasets)"]
    assert [entry.text for entry in by_dataset.rows[-2][1:]] == ["50.00", "62.00"]


def shifted(method: str, seed: int, values: dict[str, tuple[float, float, float | None, float | None]]) -> Result:
    """By test set: accuracy and zero-shot accuracy, among all classes and among its own."""
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


def test_shift_is_told_among_all_classes_and_among_a_test_sets_own() -> None:
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
    arranged = study([*results, lacking])
    (panel,) = arranged.panels
    table = shift_table(panel, 4, styles_of(arranged.method_names))
    assert table.header == (
        *("method", "mean of shifted", "mean, own classes", "imagenet (target)", "rare", "rare, own classes"),
        "sketch",
    )
    row = next(row for row in table.rows if row[0].text == "BOLT")
    # Seeds: (21 + 51) / 2 = 36 and 37; own classes: (43 + 51) / 2 = 47 and (46 + 52) / 2 = 49, zero-shot 37.5.
    assert (row[1].value, row[1].spread, row[1].gain) == (36.5, pytest.approx(math.sqrt(0.5)), 9.0)
    assert (row[2].value, row[2].spread, row[2].gain) == (48.0, pytest.approx(math.sqrt(2)), 10.5)
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
    arranged = study(results)
    (panel,) = arranged.panels
    table = epochs_table(panel, arranged.curves, 4, styles_of(arranged.method_names))
    assert table is not None
    assert table.header == ("method", "epoch 1", "epoch 2", "epoch 5", "epoch 10", "epoch 12")
    by_label = {row[0].text: row[1:] for row in table.rows}
    assert [entry.value for entry in by_label["BOLT"]] == [54.0, 55.0, 58.0, 63.0, 65.0]
    assert by_label["BOLT"][0].spread == pytest.approx(np.std([53.0, 55.0], ddof=1))
    assert [entry.text for entry in by_label["Zero-shot"]] == ["50.00"] * 5
    assert [entry.value for entry in by_label["Linear probe"]] == [30.0, None, None, None, None]
    figure = accuracy_after_epochs(panel, arranged.curves, 4, styles_of(arranged.method_names))
    assert figure is not None
    assert "± one sample standard deviation over n = 2 seeds" in figure.caption
    (plain,) = study(grid({"bolt": 60.0})).panels
    assert epochs_table(plain, {}, 4, {}) is None
    assert accuracy_after_epochs(plain, {}, 4, {}) is None


# --- protocols ----------------------------------------------------------------------------------------------------


def under(protocol: Protocol, results: Sequence[Result], more: float = 0.0) -> list[Result]:
    """The results under another protocol, ``more`` points higher by the number of the dataset."""
    moved = []
    for r in results:
        accuracy = r.evaluations[0].accuracy + more * DATASETS.index(r.cell.dataset.name)
        evaluation = replace(r.evaluations[0], accuracy=accuracy)
        moved.append(replace(r, cell=replace(r.cell, protocol=protocol), evaluations=(evaluation,)))
    return moved


def test_the_effect_of_a_switch_is_a_mean_of_paired_differences() -> None:
    strict = grid({"bolt": 60.0, "zero_shot": 0.0})
    bolt, zero_shot = [r for r in strict if r.cell.shots], [r for r in strict if not r.cell.shots]
    relu = STRICT.with_switches(sigma_sign="relu")
    changed = [*under(relu, bolt[:-4], more=0.5), *under(relu, zero_shot)]
    effects = {effect.method: effect for effect in effects_of(study([*strict, *changed]))}
    differences = [0.5 * DATASETS.index(r.cell.dataset.name) for r in bolt[:-4]]
    assert effects["BOLT"].differences == pytest.approx(differences)
    assert effects["BOLT"].changes == "sigma_sign = relu"
    table = effects_table(study([*strict, *changed]))
    assert table is not None
    rows = {row[2].text: row for row in table.rows}
    assert rows["BOLT"][3].text == f"{sum(d > 0 for d in differences)} of 28 differ"
    assert rows["BOLT"][4].value == pytest.approx(np.mean(differences))
    assert rows["BOLT"][4].spread == pytest.approx(np.std(differences, ddof=1))
    assert rows["BOLT"][5].value == 28
    assert [entry.text for entry in rows["Zero-shot"][3:]] == ["no effect", "0.00", "8"]


def test_no_effect_means_the_same_counts_of_every_class() -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 50.0})
    same = under(STRICT.with_switches(flips="always"), strict)
    table = effects_table(study([*strict, *same]))
    assert table is not None
    assert [entry.text for entry in table.rows[0]] == [
        "flips = always",
        "strict",
        "every method",
        "no effect",
        "0.00",
        "64",
    ]
    other = replace(same[0].evaluations[0], per_class=((1, 100),))
    moved = [replace(same[0], evaluations=(other,)), *same[1:]]
    (first, *_) = effects_of(study([*strict, *moved]))
    assert (first.method, first.changed, set(first.differences)) == ("BOLT", 1, {0.0})


def test_cells_are_paired_by_settings_then_by_label_and_never_at_random() -> None:
    relu = STRICT.with_switches(sigma_sign="relu")
    plain = [
        result(cell("bolt", "ants", settings=(("rate", rate),)), accuracy) for rate, accuracy in ((1, 60.0), (2, 70.0))
    ]
    turned = [result(cell("bolt", "ants", settings=(("rate", 2),), protocol=relu), 73.0)]
    (effect,) = effects_of(study([*plain, *turned]))
    assert effect.differences == (3.0,)
    relabelled = [result(cell("bolt", "ants", settings=(("rate", 3),), protocol=relu), 65.0)]
    (effect,) = effects_of(study([plain[0], *relabelled]))
    assert effect.differences == (5.0,)
    (nothing,) = effects_of(study([*plain, *relabelled]))  # two candidates, neither of them the one
    assert nothing.differences == ()
    table = effects_table(study([*plain, *relabelled]))
    assert table is not None
    assert [entry.text for entry in table.rows[0][2:5]] == [DASH, "no cell in common", DASH]


def test_a_switch_is_measured_against_the_nearest_protocol_present() -> None:
    twice = "strict+flips=always+sigma_sign=relu"
    assert base_protocol(twice, {"strict", "strict+flips=always"}) == "strict+flips=always"
    assert base_protocol(twice, {"strict", "published"}) == "strict"
    assert base_protocol("published+flips=where_valid", {"strict"}) is None
    assert base_protocol("strict", {"strict"}) is None
    assert effects_table(study(grid({"bolt": 60.0}))) is None


def test_single_switches_enter_no_verdict(tmp_path: Path) -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 55.0})
    arranged = study([*strict, *under(STRICT.with_switches(sigma_sign="relu"), strict)])
    assert [panel.key.protocol for panel in arranged.leading] == ["strict"]
    page = write(tmp_path, arranged.results).page.read_text(encoding="utf-8")
    assert page.count('class="headline"') == 1
    assert "What single switches do" in page
    assert "as strict, but sigma_sign = relu" in page


def test_what_test_labels_chose_is_marked_in_every_format(tmp_path: Path) -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})
    chosen = under(PUBLISHED, strict, more=0.1)
    files = write(tmp_path, [*strict, *chosen], published_of=lambda row: 61.0)
    for path in files.tables:
        text = path.read_text(encoding="utf-8")
        if "_strict" in path.name or path.name.startswith(("missing", "cells_", "sources")):
            assert "†" not in text
            assert "selected_on_test" not in text
        elif path.suffix == ".csv":
            lines = list(csv.DictReader(io.StringIO(text)))
            assert {line["selected_on_test"] for line in lines} <= {"true", "false"}, path.name
            for line in lines:
                published = line.get("protocol", "published") == "published"
                assert (line["selected_on_test"] == "true") == published, path.name
        elif path.suffix == ".md":
            assert text.count("†") >= 2
            assert "Selected on the test set" in text
        else:
            assert r"$^{\dagger}$" in text
            assert "Selected on the test set" in text
    for path in files.figures:
        if path.suffix == ".svg":
            assert ("selected on the test set" in path.read_text(encoding="utf-8")) == ("_published" in path.name)
    page = files.page.read_text(encoding="utf-8")
    assert page.count('<p class="selected">') == 2  # in the verdict and at the panel
    assert "published: selected on the test set" in page
    assert "† selects on the test set" in page
    with files.rows.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            assert row["selects_on_test"] == str(row["protocol"] == "published")
    arranged = study(chosen)
    figure = dataset_bars(arranged.panels[0], 4, styles_of(arranged.method_names))
    assert figure is not None
    assert figure.title.endswith("†")
    assert "Selected on the test set" in figure.caption
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(terminal_summary(results=chosen, label_of=label))
    assert "BOLT†" in console.file.getvalue()  # type: ignore[attr-defined]


# --- variants, short classes --------------------------------------------------------------------------------------


def test_variants_of_a_method_stand_in_the_order_of_the_grid() -> None:
    results = [
        result(cell("bolt", dataset, k, seed, settings=(("rate", 0.001), ("top_k", rank))), 50.0 + rank + seed)
        for rank in (12, 3, 24)
        for dataset in ("ants", "bees")
        for k in (1, 4)
        for seed in (0, 1)
    ]
    named = study_of(
        results=results[::-1],
        failures=(),
        planned=[r.cell for r in results],
        label_of=lambda c: f"BOLT, rank {c.method.settings_dict()['top_k']}",
    )
    (table,) = ablation_tables(named, named.panels[0], styles_of(named.method_names))
    assert table.header == ("variant", "top k", "k = 1", "k = 4")
    assert [(row[0].text, row[1].text) for row in table.rows] == [
        ("BOLT, rank 12", "12"),
        ("BOLT, rank 3", "3"),
        ("BOLT, rank 24", "24"),
    ]
    assert [row[3].plain for row in table.rows] == [f"{50.5 + r:.2f} ± 0.71 (+{0.5 + r:.2f})" for r in (12, 3, 24)]
    assert [row[3].mark for row in table.rows] == ["second", "", "best"]
    (plain,) = study(grid({"bolt": 60.0, "linear_probe": 55.0})).panels
    assert list(ablation_tables(study(grid({"bolt": 60.0})), plain, {})) == []


def test_ablations_on_some_datasets_stand_beside_their_method_on_the_same_cells() -> None:
    """In the domain's own table they once were rows of gaps."""
    whole = grid({"zero_shot": 0.0, "bolt": 60.0, "probe": 55.0})
    few = [result(cell("bolt", "ants", 4, 1, settings=(("top_k", 3),)), 58.0)]
    cells = [one.cell for one in (*whole, *few)]

    def named(one: Cell) -> str:
        return "rank 3" if one.method.settings else one.method.name

    arranged = study_of(results=[*whole, *few], failures=[], planned=cells, label_of=named)
    main, ablations = arranged.panels
    assert "rank 3" not in main.methods
    assert ablations.methods == ("bolt", "rank 3")
    assert {(row.method, row.dataset, row.k, row.seed) for row in ablations.rows} == {
        ("bolt", "ants", 4, 1),
        ("rank 3", "ants", 4, 1),
    }
    assert ablations.title.endswith("ablations")
    assert main.mean("bolt", 4) == study(whole).panels[0].mean("BOLT", 4)


def test_short_classes_are_counted_and_shown(tmp_path: Path) -> None:
    results = grid({"bolt": 60.0})
    short = [replace(r, details={"short_classes": 1}) if _is(r, "bolt", "cats", 4) else r for r in results]
    page = write(tmp_path, short).page.read_text(encoding="utf-8")
    assert "cats: 1 of 1 classes have fewer than 4 training images; all were taken." in page
    listed = (tmp_path / "tables" / "short_classes.csv").read_text(encoding="utf-8").splitlines()
    assert listed == ["dataset,domain,protocol,k,short classes,classes", "cats,general,strict,4,1,1"]
    assert "short_classes" not in " ".join(path.name for path in write(tmp_path, results).tables)


def test_methods_scored_on_other_images_are_named() -> None:
    results = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})
    fewer = [
        replace(r, evaluations=(replace(r.evaluations[0], total=90),)) if r.cell.method.name == "bolt" else r
        for r in results
    ]
    (panel,) = study([r for r in fewer if r.cell.shots in (0, 4) and r.cell.seed == 0]).panels
    assert panel.uneven == ("BOLT",)
    assert "Scored on other images than the rest: BOLT" in main_table(panel, styles_of(study(fewer).method_names)).note
    assert study(results).panels[0].uneven == ()


# --- many methods -------------------------------------------------------------------------------------------------


def test_many_methods_get_a_map_of_gains_and_a_verdict() -> None:
    methods = {name: 50.0 + place for place, name in enumerate(NAMED)}
    arranged = study(grid(methods | {"zero_shot": 0.0}, ks=(4,)))
    (panel,) = arranged.panels
    styles = styles_of(arranged.method_names)
    figure = by_dataset(panel, 4, styles)
    assert figure is not None
    assert figure.name.startswith("gains_")
    assert "+19.0" in figure.svg  # 50 + 14 + 4 + 1 over zero-shot at 50, on the first dataset
    (verdict,) = verdicts_of(panel)
    assert verdict.best == (label(cell(NAMED[-1])),)
    assert verdict.rank == "average rank 1.00 of 16 over 8 datasets"
    few = by_dataset(study(grid({"bolt": 60.0})).panels[0], 4, styles)
    assert few is not None
    assert few.name.startswith("bars_")


NAMED = (
    *("linear_probe", "logistic_probe", "tip_adapter", "tip_adapter_f", "lp_plus_plus", "lora", "dora", "atlas"),
    *("bolt", "bolt_pooled", "full_finetune", "task_arithmetic", "tsv_merge", "layer_norm", "meta_init"),
)


def test_named_methods_keep_colours_that_every_reader_can_tell_apart() -> None:
    together = styles_of({name: name for name in ("zero_shot", "somebody_elses", *NAMED)})
    assert all(styles_of({name: name})[name] == together[name] for name in NAMED)
    for vision in VISIONS.values():
        points = [_oklab(together[name].colour, vision) for name in NAMED]
        apart = [math.dist(a, b) for i, a in enumerate(points) for b in points[i + 1 :]]
        assert min(apart) > 0.06  # three times a just noticeable difference of about 0.02


VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""


def _oklab(colour: str, vision: np.ndarray) -> np.ndarray:
    """The colour as a reader sees it, in Ottosson's OKLab, where distances are about as large as they look."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    seen: np.ndarray = lab @ np.cbrt(cones @ np.clip(vision @ linear, 0, 1))
    return seen


def test_variants_share_their_methods_colour_in_shades() -> None:
    ranks = [f"BOLT, rank {rank}" for rank in (1, 3, 5, 8, 12, 16, 24)]
    styles = styles_of(dict.fromkeys(("bolt", *ranks), "bolt") | {"tip_adapter": "tip_adapter"})
    assert styles["bolt"] == styles_of({"bolt": "bolt"})["bolt"]
    assert styles["tip_adapter"] == styles_of({"tip_adapter": "tip_adapter"})["tip_adapter"]
    brightness = [sum(int(styles[rank].colour[i : i + 2], 16) for i in (1, 3, 5)) for rank in ranks]
    assert brightness == sorted(brightness, reverse=True)
    many = styles_of({f"v{i}": "bolt" for i in range(40)})
    assert len({(style.colour, style.marker, style.line) for style in many.values()}) == 40


# --- the page -----------------------------------------------------------------------------------------------------


class Loads(HTMLParser):
    """Collects what a browser would fetch, and checks that elements close."""

    VOID = frozenset({"meta", "link", "input", "br", "img", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.ids += [own["id"] or ""] if "id" in own else []
        if tag != "a":
            self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def failure(id_: str) -> Failure:
    return Failure(
        id_, "RuntimeError: <loss> is not finite", "Traceback\n  <loss>", f"logs/{id_}.log", 2, "2026-01-02T03:04:05"
    )


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    results = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})
    results += grid({"bolt": 58.0, "linear_probe": 59.0, "zero_shot": 0.0}, domain="remote_sensing")
    sources = [SourceRow("tiny", "general", name, 50.0, 90.0, 500) for name in DATASETS]
    files = write(tmp_path, results, sources=sources, published_of=lambda row: 59.0 if row.k == 4 else None)
    page = files.page.read_text(encoding="utf-8")
    parser = Loads()
    parser.feed(page)
    assert parser.open == []
    assert all(target.startswith(("#", "data:")) for target in parser.fetched)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(set(parser.ids)) == len(parser.ids)
    for words in (
        "90.00",
        "+40.00",
        "Beside the published numbers",
        "sigma_sign = free",
        "c0ffee123456",
        "torch 2.8.0",
    ):
        assert words in page
    assert "Nothing: all 144 cells are finished." in page
    assert {path.suffix for path in files.tables} == {".csv", ".md", ".tex"}
    assert {path.suffix for path in files.figures} == {".pdf", ".png", ".svg"}
    assert all(path.stat().st_size > 0 for path in (*files.tables, *files.figures, files.rows))
    for target in re.findall(r'<li><a href="([^"]+)"', page):
        assert target.startswith("#") or (tmp_path / target).is_file()
    again = write(tmp_path / "again", results, sources=sources, published_of=lambda row: 59.0 if row.k == 4 else None)
    assert again.page.read_bytes() == files.page.read_bytes()


def test_every_failure_and_every_missing_cell_is_shown(tmp_path: Path) -> None:
    complete = grid({"bolt": 60.0, "linear_probe": 55.0})
    results, lacking = complete[:-5], [r.cell for r in complete[-5:]]
    failures = [failure(c.id) for c in lacking[:2]] + [failure("features--0badf00d")]
    files = write(tmp_path, results, failures=failures, planned=[r.cell for r in complete])
    page = files.page.read_text(encoding="utf-8")
    for f in failures:
        assert f.id in page
        assert f.log in page
    assert page.count("RuntimeError: &lt;loss&gt; is not finite") == 3
    assert "<loss>" not in page
    assert "3 planned cells were not run" in page
    listed = (tmp_path / "tables" / "cells_without_result.csv").read_text(encoding="utf-8")
    assert all(c.id in listed for c in lacking)
    assert "features--0badf00d" in listed


def test_no_results_still_make_a_page(tmp_path: Path) -> None:
    page = write(tmp_path, []).page.read_text(encoding="utf-8")
    assert "no results yet" in page
    planned = [r.cell for r in grid({"bolt": 60.0})]
    page = write(tmp_path, [], planned=planned, failures=[failure(planned[0].id)]).page.read_text(encoding="utf-8")
    assert "32 cells are planned, 1 failed" in page
    assert planned[0].id in page


def test_one_method_on_one_dataset_makes_a_page(tmp_path: Path) -> None:
    page = write(tmp_path, [result(cell("bolt"), 60.0)]).page.read_text(encoding="utf-8")
    assert "no other complete method" in page
    assert "60.00" in page


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    page = write(tmp_path, [result(cell("bolt", evil), 60.0)], title=evil, label_of=lambda c: evil).page
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("<script>") == 1


def test_a_failed_report_leaves_the_old_one_and_a_new_one_removes_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path, grid({"bolt": 60.0}))
    page, tables = before.page.read_bytes(), before.tables
    with monkeypatch.context() as patched:
        patched.setattr(report_write, "render_page", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(tmp_path, grid({"bolt": 70.0}))
    assert before.page.read_bytes() == page
    assert all(path.is_file() for path in tables)
    assert not list(tmp_path.glob(".building-*"))
    (tmp_path / "notes.txt").write_text("mine")
    after = write(tmp_path, grid({"bolt": 60.0}, ks=(4,)))
    assert (tmp_path / "notes.txt").is_file()
    assert set((tmp_path / "tables").iterdir()) == set(after.tables)


def test_the_terminal_shows_domains_failures_and_what_is_missing() -> None:
    results = grid({"bolt": 60.0, "zero_shot": 0.0})
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    planned = [*(r.cell for r in results), cell("linear_probe")]
    console.print(terminal_summary(results=results, failures=[failure("x--0")], planned=planned, label_of=label))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("BOLT", "k = 4", "±", "x--0", "1 of 41 planned cells"):
        assert words in text
    console.print(terminal_summary(results=[], label_of=label))
    assert "no results yet" in console.file.getvalue()  # type: ignore[attr-defined]
