"""Protocols: effects of single switches, and the dagger at what test labels may have chosen."""

import csv
import io
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from bolt.protocol import PUBLISHED, STRICT
from orchestrator.analysis.comparable import base_protocol
from orchestrator.report.figures.by_dataset import dataset_dots
from orchestrator.report.styles import DASH
from orchestrator.report.tables.changes import SwitchEffect, effects_table, switch_effects, switches_text
from tests.helpers.small_results import DATASETS, arrange, cell, grid, result, terminal, under, write
from tests.orchestrator.report.test_claims import page_html


def differences_of(effect: SwitchEffect) -> list[float]:
    return [after.accuracy - before.accuracy for before, after in effect.pairs]


def test_the_effect_of_a_switch_is_a_mean_of_paired_differences() -> None:
    strict = grid({"bolt": 60.0, "zero_shot": 0.0})
    bolt, zero_shot = [r for r in strict if r.cell.shots], [r for r in strict if not r.cell.shots]
    relu = STRICT.with_switches(sigma_sign="relu")
    changed = [*under(relu, bolt[:-4], more=0.5), *under(relu, zero_shot)]
    effects = {effect.method: effect for effect in chain(*switch_effects(arrange([*strict, *changed])))}
    differences = [0.5 * DATASETS.index(r.cell.dataset.name) for r in bolt[:-4]]
    assert differences_of(effects["BOLT"]) == pytest.approx(differences)
    assert switches_text(effects["BOLT"].protocol, STRICT) == "sigma_sign = relu"
    table = effects_table(arrange([*strict, *changed]))
    rows = {row[2].text: row for row in table.rows}
    assert rows["BOLT"][3].text == f"{sum(d > 0 for d in differences)} of 28 differ"
    assert rows["BOLT"][4].value == pytest.approx(np.mean(differences))
    assert rows["BOLT"][4].std == pytest.approx(np.std(differences, ddof=1))
    assert rows["BOLT"][5].value == 28
    assert [entry.text for entry in rows["Zero-shot"][3:]] == ["no effect", "0.00", "8"]


def test_no_effect_means_the_same_counts_of_every_class() -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 50.0})
    same = under(STRICT.with_switches(flips="always"), strict)
    table = effects_table(arrange([*strict, *same]))
    texts = [entry.text for entry in table.rows[0]]
    assert texts == ["flips = always", "strict", "every method", "no effect", "0.00", "64"]
    other = replace(same[0].evaluations[0], per_class=((1, 100),))
    moved = [replace(same[0], evaluations=(other,)), *same[1:]]
    ((first, *_),) = switch_effects(arrange([*strict, *moved]))
    assert (first.method, first.changed, set(differences_of(first))) == ("BOLT", 1, {0.0})


def test_cells_are_paired_by_settings_then_by_label_and_never_at_random() -> None:
    relu = STRICT.with_switches(sigma_sign="relu")
    plain = [
        result(cell("bolt", "ants", settings=(("rate", rate),)), accuracy) for rate, accuracy in ((1, 60.0), (2, 70.0))
    ]
    turned = [result(cell("bolt", "ants", settings=(("rate", 2),), protocol=relu), 73.0)]
    ((effect,),) = switch_effects(arrange([*plain, *turned]))
    assert differences_of(effect) == [3.0]
    relabelled = [result(cell("bolt", "ants", settings=(("rate", 3),), protocol=relu), 65.0)]
    ((effect,),) = switch_effects(arrange([plain[0], *relabelled]))
    assert differences_of(effect) == [5.0]
    ((nothing,),) = switch_effects(arrange([*plain, *relabelled]))  # two candidates, neither of them the one
    assert nothing.pairs == ()
    table = effects_table(arrange([*plain, *relabelled]))
    assert [entry.text for entry in table.rows[0][2:5]] == [DASH, "no cell in common", DASH]


def test_a_switch_is_measured_against_the_nearest_protocol_present() -> None:
    twice = "strict+flips=always+sigma_sign=relu"
    assert base_protocol(twice, {"strict", "strict+flips=always"}) == "strict+flips=always"
    assert base_protocol(twice, {"strict", "published"}) == "strict"
    assert base_protocol("published+flips=where_valid", {"strict"}) is None
    assert base_protocol("strict", {"strict"}) is None
    assert effects_table(arrange(grid({"bolt": 60.0}))) is None


def test_changed_protocols_have_no_verdict() -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 55.0})
    arranged = arrange([*strict, *under(STRICT.with_switches(sigma_sign="relu"), strict)])
    assert [group.place.protocol for group in arranged.main_groups] == ["strict"]
    page = page_html(arranged)
    assert page.count('class="headline"') == 1
    assert "What single switches do" in page
    assert "as strict, but sigma_sign = relu" in page


@pytest.mark.slow
def test_what_test_labels_chose_is_marked_in_every_format(tmp_path: Path) -> None:
    strict = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0}, datasets=DATASETS[:5])
    chosen = under(PUBLISHED, strict, more=0.1)
    file = write(tmp_path, [*strict, *chosen], published_of=lambda row: 61.0)
    for path in (tmp_path / "tables").iterdir():
        text = path.read_text(encoding="utf-8")
        if "_strict" in path.name or path.name.startswith(("missing", "cells_", "sources")):
            assert not any(mark in text for mark in ("†", "selected_on_test"))
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
    for path in (tmp_path / "figures").glob("*.svg"):
        assert ("selected on the test set" in path.read_text(encoding="utf-8")) == ("_published" in path.name)
    page = file.read_text(encoding="utf-8")
    assert page.count('<p class="selected">') == 2  # in the verdict and at the group
    assert all(words in page for words in ("published: selected on the test set", "† selects on the test set"))
    with (tmp_path / "rows.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            assert row["selects_on_test"] == str(row["protocol"] == "published")
    arranged = arrange(chosen)
    figure = dataset_dots(arranged, arranged.groups[0], 4)
    assert figure.title.endswith("†")
    assert "Selected on the test set" in figure.caption
    assert "BOLT†" in terminal(arranged)
