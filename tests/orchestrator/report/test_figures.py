"""The report's figures: what they show, that they say what bands are, and that they are the same each time."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.models.inspection import Overlap
from orchestrator.report.analysis import GridResults
from orchestrator.report.analysis.variants import numeric_settings, paired_difference, variants_of
from orchestrator.report.costs import accuracy_against_costs, power_of_ten
from orchestrator.report.figures import drawing as figures_drawing
from orchestrator.report.figures.by_dataset import accuracy_by_dataset, accuracy_radar, dataset_dots
from orchestrator.report.figures.cell import (
    coefficient_spectra,
    confusion_matrix,
    overlap_map,
    short_name,
    training_curves,
)
from orchestrator.report.figures.curves import accuracy_against_k, accuracy_against_settings, effects_of_variants
from orchestrator.report.figures.drawing import FigureFile, canvas, finished, heat_map, inline_svg
from orchestrator.report.figures.labels import PointLabel, label_points
from tests.helpers.small_results import arrange, cell, grid, result
from tests.helpers.synthetic_results import everything
from tests.orchestrator.report.test_styles import METHODS


@pytest.fixture(scope="module")
def ablations() -> GridResults:
    return everything("ablations", only=["domain=general"], published_of=None, names_of=None, sources=())


@pytest.fixture(scope="module")
def fewshot() -> GridResults:
    only = ["backbone=vit-b-32", "domain=general", "k=4,16"]
    return everything("fewshot", only=only, published_of=lambda row: 50.0, names_of=None, sources=())


def named(*names: str) -> FigureFile:
    with canvas(4, 3) as figure:
        labels = {"colours": ["#ffffff", "#000000"], "low": 0, "high": 1, "edge": 0.4, "rotation": 60, "fontsize": 7}
        heat_map(figure.add_subplot(), np.eye(len(names)), rows=names, columns=names, **labels)  # type: ignore[arg-type]
        return finished(figure, "names", "Names", "Names.")


def test_a_letter_is_drawn_with_an_installed_font_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: every Chinese letter and emoji was the same box, with a warning for each."""
    letters = "\N{MATHEMATICAL BOLD SCRIPT CAPITAL A}", "\N{MATHEMATICAL BOLD SCRIPT CAPITAL B}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fallbacks, same in (((), True), (("none of that name", "STIXGeneral"), False)):
            monkeypatch.setattr(figures_drawing, "_FALLBACKS", fallbacks)
            first, second = map(named, letters)
            assert (first.png == second.png) == same
            assert f">{letters[0]}<" in first.svg  # a browser has more fonts


def test_a_radar_has_a_spoke_for_each_dataset_and_says_where_its_centre_is(fewshot: GridResults) -> None:
    group = fewshot.groups[0]
    figure = accuracy_radar(fewshot, group, 4)
    assert figure == accuracy_radar(fewshot, group, 4)
    for dataset in ("dtd", "gtsrb", "food101"):
        assert f">{dataset}<" in figure.svg
    assert "the centre is" in figure.caption
    assert "n = 3" in figure.caption
    assert figure.pdf.startswith(b"%PDF")
    assert b"CreationDate" not in figure.pdf
    unpublished = arrange(grid({"bolt": 60.0, "lora": 55.0}))
    assert accuracy_radar(unpublished, unpublished.groups[0], 4) is None


def test_costs_name_every_method_beside_its_point(fewshot: GridResults) -> None:
    numbers, seconds = accuracy_against_costs(fewshot, fewshot.groups[0])
    for figure in (numbers, seconds):
        assert "n = 3 seeds" in figure.caption
        for method in fewshot.groups[0].methods:
            assert fewshot.display_names[method] in figure.svg
    assert ">10 k<" in numbers.svg
    assert "wall-clock" in seconds.caption


@pytest.mark.parametrize("only_right", [False, True])
def test_names_of_points_that_lie_together_do_not_overlap(only_right: bool) -> None:
    with canvas(5.0, 4.0) as figure:
        axes = figure.add_subplot()
        axes.set_xlim(0, 2)
        axes.set_ylim(0, 2)
        points = [PointLabel(f"method {i}", 1.0, 1.0 + 0.01 * i, "#000000") for i in range(6)]
        label_points(axes, points, only_right=only_right)
        renderer = figure.canvas.get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) == 6
    for i, box in enumerate(boxes):
        assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in boxes[:i])


@pytest.mark.parametrize(
    ("power", "printed"), [(-2, "0.01"), (0, "1"), (2, "100"), (3, "1 k"), (5, "100 k"), (6, "1 M"), (10, "10 G")]
)
def test_powers_of_ten_print_with_units(power: int, printed: str) -> None:
    assert power_of_ten(power) == printed


def test_the_variants_of_a_curve_differ_in_one_setting_only(ablations: GridResults) -> None:
    group = max(ablations.groups, key=lambda group: len(group.methods))
    (variants,) = variants_of(ablations, group).values()
    assert variants[0].label == "bolt"
    settings = numeric_settings(variants)
    assert [value for value, _ in settings["top_k"]] == [3, 5, 7, 9, 12, 15]
    # Not 7 and 8: those sources were chosen by name.
    assert [value for value, _ in settings["sources"]] == [1, 3, 6, 10, 16]
    assert [value for value, _ in settings["alphas"]] == [1, 3, 5, 10]  # the method itself chooses among several
    (figure,) = accuracy_against_settings(ablations, group)
    assert ">top k<" in figure.svg
    assert "n = 3 seeds" in figure.caption


def test_a_variants_effect_is_paired_by_seed(ablations: GridResults) -> None:
    group = max(ablations.groups, key=lambda group: len(group.methods))
    found = paired_difference(group, "ReLU sign", "bolt", 16)
    tests = group.tests(16, averaged=True)
    relu, bolt = ([group.rows_by_seed(label, 16, test) for test in tests] for label in ("ReLU sign", "bolt"))
    by_seed = [np.mean([a[s].accuracy - b[s].accuracy for a, b in zip(relu, bolt, strict=True)]) for s in (1, 2, 3)]
    assert found.mean == pytest.approx(np.mean(by_seed))
    assert found.std == pytest.approx(np.std(by_seed, ddof=1))
    (figure,) = effects_of_variants(ablations, group)
    assert ">BOLT (ReLU sign)<" in figure.svg


def test_a_confusion_matrix_has_shares_of_each_true_class() -> None:
    figure = confusion_matrix(np.array([[3, 1], [0, 4]]), ("cat", "dog"), "pets")
    assert [share in figure.svg for share in (">75<", ">25<", ">100<")] == [True] * 3
    assert confusion_matrix(np.zeros((61, 61), dtype=np.int64), tuple(map(str, range(61))), "many") is None


def test_spectra_and_overlaps_are_drawn_where_there_are_any() -> None:
    name = "transformer.resblocks.3.mlp.c_fc.weight"
    figure = coefficient_spectra({name: (np.array([1.0, -2.0]), np.array([0.5, 3.0])), "proj": (None, np.ones(2))})
    assert short_name(name) == "3 mlp.c_fc"
    assert ">3 mlp.c_fc<" in figure.svg
    assert coefficient_spectra({}) is None


def test_an_overlap_map_spans_the_values_between_different_sources() -> None:
    values = np.array([[1.0, 0.25, 0.31], [0.25, 1.0, 0.4], [0.31, 0.4, 1.0]])
    figure = overlap_map(Overlap(("mnist", "svhn", "usps"), values, random=0.07, directions=12))
    assert all(number in figure.caption for number in ("0.25", "0.40", "0.07", "12 directions"))
    assert ">0.31<" in figure.svg
    assert ">1.00<" not in figure.svg  # every source overlaps with itself
    assert overlap_map(Overlap(("mnist",), np.ones((1, 1)), 0.07, 12)) is None
    assert overlap_map(None) is None


def test_training_curves_show_every_recorded_number() -> None:
    figure = training_curves({"train_loss": (2.0, 1.0, 0.5), "learning_rate": (0.01, 0.005, 0.0)})
    assert all(f">{title}<" in figure.svg for title in ("training loss", "learning rate"))
    assert training_curves({}) is None
    assert training_curves({"train_loss": (2.0,)}) is None


def test_figures_are_the_same_each_time_and_take_the_pages_colours() -> None:
    arranged = arrange(grid({"bolt": 60.0, "cost_$x^2$": 55.0, "_hidden": 51.0, "zero_shot": 0.0}))
    (group,) = arranged.groups
    first, second = accuracy_against_k(arranged, group), accuracy_against_k(arranged, group)
    assert first is not None
    assert first == second
    assert "cost_$x^2$" in first.svg
    assert "hidden" in first.svg
    assert "n = 2 seeds" in first.caption
    inline = inline_svg(first)
    assert "http" not in inline
    assert "currentColor" in inline
    assert not re.search(r'href="#(?!accuracy_)', inline)
    dots = dataset_dots(arranged, group, 4)
    assert dots is not None
    assert dots.png.startswith(b"\x89PNG")


def test_one_seed_has_no_band_and_one_k_no_line() -> None:
    arranged = arrange(grid({"bolt": 60.0}, seeds=(0,)))
    figure = accuracy_against_k(arranged, arranged.groups[0])
    assert "no band" in figure.caption
    arranged = arrange(grid({"bolt": 60.0}, ks=(4,)))
    assert accuracy_against_k(arranged, arranged.groups[0]) is None


def test_a_long_name_is_not_cut_off() -> None:
    """A name beside a line once ended at the edge of the figure, so that two variants read the same."""

    def width(name: str) -> float:
        arranged = arrange(grid({name: 60.0, "lora": 55.0}))
        figure = accuracy_against_k(arranged, arranged.groups[0])
        return float(figure.svg.split('viewBox="0 0 ')[1].split()[0])

    assert width("bolt") == pytest.approx(5.6 * 72)
    assert width("a method whose name says each of its many settings") > 5.6 * 72 + 40


def test_every_k_of_a_curve_over_settings_has_a_marker_of_its_own() -> None:
    """There are four kinds of lines, so the fifth k once looked like the first."""
    results = [
        result(cell("bolt", k=k, settings=(("top_k", rank),)), 50.0 + rank + k)
        for rank in (4, 8)
        for k in (1, 2, 4, 8, 16)
    ]
    arranged = GridResults(
        results=results,
        planned=[one.cell for one in results],
        label_of=lambda cell: f"bolt[top_k={cell.method.settings_dict()['top_k']}]",
    )
    (figure,) = accuracy_against_settings(arranged, arranged.groups[0])
    legend = figure.svg[figure.svg.index('id="legend') :]
    assert len(set(re.findall(r'xlink:href="#(\w+)"', legend))) == 5


def test_many_methods_get_a_map_of_gains() -> None:
    methods = {name: 50.0 + place for place, name in enumerate(METHODS[:15])}
    arranged = arrange(grid(methods | {"zero_shot": 0.0}, ks=(4,)))
    (group,) = arranged.groups
    figure = accuracy_by_dataset(arranged, group, 4)
    assert figure.name.startswith("gains_")
    assert "+19.0" in figure.svg  # 50 + 14 + 4 + 1 over zero-shot at 50, on the first dataset
    # Long names of methods once left no room for the squares: matplotlib warned, and warnings are errors here.
    long_names = {f"a method with a very long name, number {place}": 50.0 for place in range(14)}
    one_dataset = arrange(grid(long_names | {"zero_shot": 0.0}, datasets=("a",), ks=(4,)))
    assert accuracy_by_dataset(one_dataset, one_dataset.groups[0], 4) is not None
    # At k = 16, no method was measured where zero-shot was, so no gain is known.
    elsewhere = [*one_dataset.results, *grid(dict.fromkeys(long_names, 50.0), datasets=("b",), ks=(16,))]
    balanced = arrange([replace(one, cell=replace(one.cell, track="imbalanced")) for one in elsewhere])
    assert accuracy_by_dataset(balanced, balanced.groups[0], 16).name.startswith("dots_")
    few_methods = arrange(grid({"bolt": 60.0}, ks=(4,)))
    few = accuracy_by_dataset(few_methods, few_methods.groups[0], 4)
    assert few.name.startswith("dots_")
