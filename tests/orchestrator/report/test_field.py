"""What the field has published on the eleven datasets: sourced, consistent, and beside what was measured."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from bolt.methods import METHODS
from bolt.protocol import PUBLISHED
from orchestrator.catalog import load_catalog
from orchestrator.cli.app import app
from orchestrator.report.paper.field import (
    AVERAGES,
    IMAGENET,
    VARIANTS,
    FieldNumber,
    field_numbers,
    field_sources,
    field_tables,
    field_verdicts,
    tables_beside_measured,
)
from orchestrator.report.tables.table import Table
from orchestrator.store.results import Result
from tests.helpers.small_results import arrange, base_to_new_result, cell, result


def found(**fields: object) -> list[FieldNumber]:
    """The published numbers with these fields."""
    return [one for one in field_numbers() if all(getattr(one, name) == value for name, value in fields.items())]


def test_every_number_has_one_source_and_every_source_a_number() -> None:
    numbers, sources = field_numbers(), field_sources()
    assert len(numbers) == 1782
    assert {one.source for one in numbers} == set(sources.sources)
    assert len({(one.source, one.table, one.k, one.method, one.dataset) for one in numbers}) == len(numbers)
    for key, source in sources.sources.items():
        assert set(source.own) <= {one.method for one in found(source=key)}, key
    assert set(sources.methods.values()) <= set(METHODS)
    assert {one.dataset for one in numbers} <= set(load_catalog().datasets) | set(AVERAGES)
    assert all(0 < one.accuracy <= 100 for one in numbers)


@pytest.mark.parametrize(
    ("fields", "accuracy", "validation", "first_hand"),
    [
        (
            {"source": "tip_adapter", "method": "Tip-Adapter", "k": 16, "dataset": "eleven_imagenet"},
            62.01,
            "test",
            True,
        ),
        (
            {"source": "gda_architecture", "backbone": "ViT-B/16", "dataset": "eleven_dtd", "k": 16},
            71.2569,
            "whole",
            True,
        ),
        ({"source": "plot_pp", "k": 1, "dataset": "eleven_eurosat"}, 65.41, "not stated", True),
        ({"source": "maple", "method": "MaPLe", "metric": "H"}, 78.55, "none", True),
        ({"source": "maple", "method": "CoOp", "metric": "new"}, 63.22, "none", False),
    ],
)
def test_single_numbers(fields: dict[str, object], accuracy: float, validation: str, first_hand: bool) -> None:
    (one,) = found(**fields)
    assert (one.accuracy, one.validation, one.first_hand) == (accuracy, validation, first_hand)


def test_harmonic_means_and_averages_agree_with_their_parts_but_for_known_slips() -> None:
    by_place: dict[tuple[object, ...], dict[str, float]] = {}
    by_line: dict[tuple[object, ...], dict[str, float]] = {}
    for one in field_numbers():
        by_place.setdefault((one.source, one.method, one.dataset), {})[one.metric] = one.accuracy
        by_line.setdefault((one.source, one.method, one.metric, one.table, one.k), {})[one.dataset] = one.accuracy
    wrong_h = {
        key[:2]
        for key, own in by_place.items()
        if {"base", "new", "H"} <= own.keys() and abs(own["H"] - 2 / (1 / own["base"] + 1 / own["new"])) > 0.011 + 1e-9
    }
    assert wrong_h == {("promptsrc", "ProDA"), ("transagent_1", "RPO")}
    wrong = {
        (source, method)
        for (source, method, metric, *_), own in by_line.items()
        for name, datasets in AVERAGES.items()
        if name in own and set(datasets) <= own.keys() and metric != "H"
        if abs(own[name] - fmean(own[dataset] for dataset in datasets)) > 0.02
    }
    assert wrong == {("freetta_1", "DiffTPT"), ("freetta_1", "ZERO"), ("freetta_2", "DiffTPT")}


def test_reprinted_numbers_are_shown_only_if_asked_for() -> None:
    first, every = field_tables(), field_tables(reprinted=True)
    assert not any(
        "reprinted" in row[i].text for table in first for row in table.rows for i in range(table.text_columns)
    )
    assert sum(len(table.rows) for table in first) < sum(len(table.rows) for table in every)
    assert all(len(table.footnotes) <= 26 for table in every)


def test_the_best_sets_that_the_literature_supports() -> None:
    best = {
        (answer.place.track, answer.place.backbone, verdict.k): set(verdict.best_set)
        for answer in field_verdicts()
        for verdict in answer.verdicts
    }
    assert best["few_shot", "RN50", 1] == {"Tip-Adapter-F"}
    assert best["few_shot", "RN50", 16] == {"GDA", "Tip-Adapter-F"}
    assert best["base_to_new", "ViT-B/16", 16] == {"TransAgent", "DiscoVL"}
    verdicts = {answer.place.track: verdict for answer in field_verdicts() for verdict in answer.verdicts if verdict.k}
    once = {"cross_dataset", "domain_generalisation", "test_time"}
    assert {track for track, verdict in verdicts.items() if verdict.same_supports} == once


def beside(results: list[Result], **more: Any) -> dict[str, Table]:
    grid = arrange(results, names_of=lambda backbone, dataset: ("ViT-B/16", None), **more)
    return {table.title: table for table in tables_beside_measured(grid)}


def lines(table: Table, method: str) -> dict[str, list[float | None]]:
    """The numbers of a method at k = 16, by source."""
    texts = table.text_columns
    return {row[texts - 1].text: [e.value for e in row[texts:]] for row in table.rows if row[texts - 2].text == method}


def test_measured_few_shot_numbers_stand_beside_the_published_ones() -> None:
    cells = [cell("gda", name, 16, seed, domain="eleven") for name in AVERAGES["average of 11"] for seed in (0, 1)]
    table = beside([result(of, 70.0 + of.seed) for of in cells])["Few-shot, ViT-B/16"]
    assert table.header[-1] == "average of 11"
    found = lines(table, "GDA")
    assert list(found) == ["measured here", "gda_architecture"]
    assert found["measured here"] == [70.5] * 12
    assert found["gda_architecture"][:2] == [72.2427, 95.7945]
    assert "docs/field-benchmark.md" in table.note
    more = [replace(of, protocol=PUBLISHED) for of in cells]
    both = beside([result(of, 70.0) for of in cells] + [result(of, 80.0) for of in more])["Few-shot, ViT-B/16"]
    assert {where: own[-1] for where, own in lines(both, "GDA").items() if "here" in where} == {
        "measured here, strict": 70.0,
        "measured here, published": 80.0,
    }
    assert {row[2].text for row in both.rows if row[-1].selected and "here" in row[2].text} == {
        "measured here, published"
    }


def test_the_h_of_measured_averages_is_taken_of_the_averages() -> None:
    names = AVERAGES["average of 11"]
    results = [
        base_to_new_result(cell("gda", name, 16, 0, domain="eleven", track="base_to_new"), 70.0 + i, 80.0 - 2 * i)
        for i, name in enumerate(names)
    ]
    tables = beside(results)
    base, new, h = (
        lines(tables[f"Base to new classes, ViT-B/16: {metric}"], "GDA")["measured here"]
        for metric in ("base", "new", "H")
    )
    assert (base[-1], new[-1]) == (75.0, 70.0)
    assert (h[-1], h[0]) == (pytest.approx(2 * 75 * 70 / 145), pytest.approx(2 * 70 * 80 / 150))


def test_results_on_other_datasets_are_those_from_imagenet_among_their_own_classes() -> None:
    """Numbers among 1,000 classes stood beside published ones among 200, and those from DTD beside ImageNet's."""
    of = cell("coop", IMAGENET, 16, 1, domain="eleven", track="ood", evaluate_on=(IMAGENET, *VARIANTS))
    shifted = result(of, 70.0, 60.0, 50.0, 30.0, 40.0)
    partial = tuple(
        replace(one, accuracy_own_classes=48.0, accuracy_zero_shot_own_classes=47.0) if name.endswith("_a") else one
        for name, one in zip((IMAGENET, *VARIANTS), shifted.evaluations, strict=True)
    )
    table = beside([replace(shifted, evaluations=partial)])["From ImageNet to its variants, ViT-B/16"]
    assert lines(table, "CoOp")["measured here"][:5] == [70.0, 60.0, 50.0, 48.0, 40.0]
    across = [
        result(
            cell("coop", name, 16, 1, domain="eleven", track="cross_dataset", evaluate_on=("eleven_eurosat",)), value
        )
        for name, value in ((IMAGENET, 46.0), ("eleven_dtd", 30.0))
    ]
    found = lines(beside(across)["From ImageNet to the ten other datasets, ViT-B/16"], "CoOp")["measured here"]
    assert [value for value in found if value is not None] == [46.0]
    assert beside(across[1:]) == {}


def test_the_only_label_of_a_method_on_a_track_stands_beside_its_published_numbers() -> None:
    other = cell("promptsrc", "eleven_dtd", 16, 0, domain="eleven")
    of = replace(other, track="base_to_new")
    results = [base_to_new_result(of, 80.0, 70.0), result(other, 60.0)]
    made = beside(results, label_of=lambda one: "promptsrc" + "[base_to_new]" * (one.track != "fewshot"))
    sources = list(lines(made["Base to new classes, ViT-B/16: H"], "PromptSRC"))
    assert sources[0] == "measured here"
    assert len(sources) > 1


def test_an_incomplete_average_and_a_grid_of_other_datasets_have_no_numbers() -> None:
    one = [result(cell("gda", "eleven_dtd", 16, 0, domain="eleven"), 70.0)]
    assert lines(beside(one)["Few-shot, ViT-B/16"], "GDA")["measured here"][-1] is None
    assert beside([result(cell("gda", "ants", 16, 0), 70.0)]) == {}


@pytest.mark.parametrize("words", [["eleven"], ["eleven", "--reprinted"]])
def test_the_command_writes_the_page(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--published", *words, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "index.html").read_text()
    assert ("CALIP" in page) == ("--reprinted" in words)
    assert "TransAgent (NeurIPS 2024), Table 1" in page


@pytest.mark.parametrize("words", [["demo", "--published"], ["demo", "--reprinted"], ["--published", "--reprinted"]])
def test_words_that_do_not_go_together(words: list[str]) -> None:
    assert "eleven" in str(CliRunner().invoke(app, ["report", *words]).exception)
