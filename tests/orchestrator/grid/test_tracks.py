"""What tracks change in the expansion of a grid."""

import pytest

from orchestrator.catalog import Catalog
from orchestrator.grid import Grid, load_grid
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid, cell_keys


def test_tta_cells_have_seeds_but_no_shots(load: LoadGrid, catalog: Catalog) -> None:
    text = GRID.replace("fewshot", "tta").replace("- trained", "- unlabelled").replace("[one, two, four]", "[one]")
    assert cell_keys(load(text.replace("    shots: [1, 4]\n", ""))) == [
        ("plain", "one", 0, 0), ("unlabelled", "one", 0, 1), ("unlabelled", "one", 0, 2),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"blocks\[0\]\.shots: the tta track reads no labels"):
        load(text)
    grid = load_grid("full", catalog, set_=["shots=[2]"])  # set where a track takes them
    assert {cell.shots for cell in grid.cells if cell.track != "tta"} == {0, 2}
    assert any(cell.track == "tta" for cell in grid.cells)


def test_at_test_time_methods_have_seeds_and_settings_of_their_own(load: LoadGrid) -> None:
    few_shot = load(GRID.replace("- trained", "- atlas"))
    text = GRID.replace("fewshot", "tta").replace("    shots: [1, 4]\n", "").replace("- trained", "- atlas")
    grid = load(text)
    adapted = [cell for cell in grid.cells if cell.method.name == "atlas"]
    assert {(cell.shots, cell.seed) for cell in adapted} == {(0, 1), (0, 2)}
    assert {cell.seed for cell in grid.cells if cell.method.name == "plain"} == {0}
    epochs = {cell.track: dict(cell.method.settings)["epochs"] for cell in (*adapted, *few_shot.cells)
              if cell.method.name == "atlas"}  # fmt: skip
    assert epochs["tta"] == 1 < epochs["fewshot"]
    both = load(text + GRID.partition("blocks:")[2].replace("- trained", "- atlas"))
    assert {both.label(cell) for cell in both.cells} == {"plain", "atlas"}


def test_variants_may_hold_some_of_the_targets_classes_but_no_others(load: LoadGrid) -> None:
    def scored_on(*names: str, target: str = "aerial-land") -> Grid:
        text = GRID.replace("fewshot", "ood").replace("[one, two, four]", f"[{target}]")
        return load(text.replace("    shots:", f"    evaluate_on: [{target}, {', '.join(names)}]\n    shots:"))

    assert scored_on("aerial-land-cloudy")
    with pytest.raises(UserError, match=r"glyph-kinds has the class '.*', but aerial-land has no such class"):
        scored_on("glyph-kinds")
    with pytest.raises(UserError, match=r"evaluate_on\[1\]: wide has 4 classes, but one has 2;"):
        scored_on("wide", target="one")


def test_a_method_that_cannot_name_new_classes_is_refused_on_base_to_new(load: LoadGrid) -> None:
    text = GRID.replace("fewshot", "base_to_new").replace("- plain", "- zero_shot")
    with pytest.raises(UserError, match=r"linear_probe cannot be measured on the base_to_new track.*not adapted to"):
        load(text.replace("- trained", "- linear_probe"))
    text = text.replace("- trained", "- lora")
    with pytest.raises(UserError, match="one has 2 classes: with one new class, every prediction is right"):
        load(text)
    text = text.replace("[one, two, four]", "[wide]").replace("    shots", "    sources: {required: false}\n    shots")
    assert {cell.track for cell in load(text).cells} == {"base_to_new"}


def test_an_imbalanced_support_may_take_as_many_images_as_the_training_split_has(load: LoadGrid) -> None:
    """Of aerial-land, with 12 classes and 1,000 training images, 83 a class."""
    text = GRID.replace("[one, two, four]", "[aerial-land]").replace("- trained", "- lora")
    text = text.replace("fewshot", "imbalanced")
    assert load(text.replace("[1, 4]", "[83]"))
    with pytest.raises(UserError, match="84 for 12 classes, but aerial-land has 1000"):
        load(text.replace("[1, 4]", "[84]"))
