"""The report's figures: what they show, that they say what bands are, and that they are the same each time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.report.analysis.study import Study, study_of
from orchestrator.report.analysis.variants import knobs_of, paired_difference, variants_of
from orchestrator.report.figure_pool import Drawing
from orchestrator.report.figures import (
    accuracy_against_costs,
    accuracy_against_settings,
    accuracy_radar,
    effects_of_settings,
)
from orchestrator.report.figures.cell import coefficient_spectra, confusion_matrix, overlap_map, short_name
from orchestrator.report.figures.costs import power_words
from orchestrator.report.figures.drawing import canvas, finished
from orchestrator.report.styles import styles_of
from tests.helpers.synthetic_results import everything


@pytest.fixture(scope="module")
def ablations() -> Study:
    drawn = everything("ablations", only=["domain=general"]).arguments()
    return study_of(**{key: drawn[key] for key in ("results", "failures", "planned", "label_of")})


@pytest.fixture(scope="module")
def fewshot() -> Study:
    drawn = everything("fewshot", only=["backbone=vit-b-32", "domain=general", "k=4,16"]).arguments()
    return study_of(**{key: drawn[key] for key in ("results", "failures", "planned", "label_of")})


def test_a_radar_has_a_spoke_for_each_dataset_and_says_where_its_centre_is(fewshot: Study) -> None:
    panel = fewshot.panels[0]
    figure = accuracy_radar(panel, 4, styles_of(fewshot.method_names))
    assert figure is not None
    assert figure == accuracy_radar(panel, 4, styles_of(fewshot.method_names))
    for dataset in ("dtd", "gtsrb", "food101"):
        assert f">{dataset}<" in figure.svg
    assert "the centre is" in figure.caption
    assert "n = 3" in figure.caption
    assert figure.pdf.startswith(b"%PDF")
    assert b"CreationDate" not in figure.pdf


def test_costs_say_what_whiskers_and_areas_are(fewshot: Study) -> None:
    figure = accuracy_against_costs(fewshot.panels[0], 16, styles_of(fewshot.method_names))
    assert figure is not None
    assert "n = 3 seeds" in figure.caption
    assert "MiB" in figure.caption
    assert ">10 k<" in figure.svg


@pytest.mark.parametrize(
    ("power", "words"), [(-2, "0.01"), (0, "1"), (2, "100"), (3, "1 k"), (5, "100 k"), (6, "1 M"), (10, "10 G")]
)
def test_powers_of_ten_are_words(power: int, words: str) -> None:
    assert power_words(power) == words


def test_only_one_thing_differs_on_a_curve_over_settings(ablations: Study) -> None:
    panel = max(ablations.panels, key=lambda panel: len(panel.methods))
    (variants,) = variants_of(ablations, panel).values()
    assert variants[0].label == "bolt"
    knobs = knobs_of(variants)
    assert [value for value, _ in knobs["top_k"]] == [3, 5, 7, 9, 12, 15]
    assert [value for value, _ in knobs["sources"]] == [1, 3, 6, 10, 16]  # and not the 7 and 8 that were chosen by name
    assert [value for value, _ in knobs["alphas"]] == [1, 3, 5, 10]  # the method itself chooses among several
    (figure,) = accuracy_against_settings(ablations, panel, styles_of(ablations.method_names))
    assert ">top k<" in figure.svg
    assert "n = 3 seeds" in figure.caption


def test_a_variants_effect_is_paired_by_seed(ablations: Study) -> None:
    panel = max(ablations.panels, key=lambda panel: len(panel.methods))
    found = paired_difference(panel, "ReLU sign", "bolt", 16)
    tests = panel.tests(16, averaged=True)
    by_seed = [
        np.mean(
            [
                panel.seed_rows("ReLU sign", 16, t)[s].accuracy - panel.seed_rows("bolt", 16, t)[s].accuracy
                for t in tests
            ]
        )
        for s in (1, 2, 3)
    ]
    assert found is not None
    assert found.mean == pytest.approx(np.mean(by_seed))
    assert found.std == pytest.approx(np.std(by_seed, ddof=1))
    (figure,) = effects_of_settings(ablations, panel, styles_of(ablations.method_names))
    assert ">ReLU sign<" in figure.svg


def test_figures_drawn_in_another_process_are_the_same(ablations: Study) -> None:
    styles = styles_of(ablations.method_names)
    small = replace(ablations, panels=ablations.panels[:2])
    with Drawing(small, styles, processes=2) as two, Drawing(small, styles, processes=1) as one:
        assert two.finish() == one.finish()


def test_letters_that_the_small_font_lacks_are_taken_from_the_whole_one() -> None:
    with canvas(2, 1) as figure:
        figure.text(0.1, 0.5, "\N{GREEK SMALL LETTER ALPHA} ≤ é \N{CYRILLIC CAPITAL LETTER ZHE}")
        drawn = finished(figure, caption="", selected=False, name="letters", title="Letters")
    assert "font-family: 'DejaVu Sans'" in drawn.svg
    assert "Figure Sans" not in drawn.svg
    assert b"FigureSans" in drawn.pdf
    assert b"DejaVuSans" in drawn.pdf


def test_a_confusion_matrix_has_shares_of_each_true_class() -> None:
    figure = confusion_matrix(np.array([[3, 1], [0, 4]]), ("cat", "dog"), "pets")
    assert figure is not None
    assert [share in figure.svg for share in (">75<", ">25<", ">100<")] == [True] * 3
    assert confusion_matrix(np.zeros((61, 61), dtype=np.int64), tuple(map(str, range(61))), "many") is None


def test_spectra_and_overlaps_are_drawn_where_there_are_any() -> None:
    name = "transformer.resblocks.3.mlp.c_fc.weight"
    figure = coefficient_spectra({name: (np.array([1.0, -2.0]), np.array([0.5, 3.0])), "proj": (None, np.ones(2))})
    assert figure is not None
    assert short_name(name) == "3 mlp.c_fc"
    assert ">3 mlp.c_fc<" in figure.svg
    assert coefficient_spectra({}) is None
    overlap = overlap_map(np.array([[1.0, 0.25], [0.25, 1.0]]), ("mnist", "svhn"), 12)
    assert overlap is not None
    assert "0.25" in overlap.caption
    assert overlap_map(np.ones((1, 1)), ("mnist",), 12) is None
