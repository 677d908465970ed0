"""The number format of towers as a setting of a grid, a block or a method."""

from dataclasses import replace

import pytest

from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.grid import Grid
from orchestrator.planning.plan import source_models
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid, labels


def formats(grid: Grid) -> dict[str, set[str | None]]:
    """The number formats of each method's cells."""
    found: dict[str, set[str | None]] = {}
    for cell in grid.cells:
        found.setdefault(cell.method.name, set()).add(cell.backbone.precision)
    return found


def test_a_grids_format_makes_other_cells_and_other_sources(load: LoadGrid, catalog: Catalog) -> None:
    plain, chosen = load(), load(f"precision: float32\n{GRID}")
    for cell in plain.cells:  # without a format a cell has the identity that it always had
        assert cell.backbone.precision is None
        assert "precision" not in cell.to_dict()["backbone"]
    assert formats(chosen) == {"plain": {"float32"}, "trained": {"float32"}}
    assert not {cell.id for cell in plain.cells} & {cell.id for cell in chosen.cells}
    assert not set(plain.sources) & set(chosen.sources)
    models = source_models(chosen, catalog, None)
    assert {model.backbone.precision for model in models.values()} == {"float32"}
    before = source_models(plain, catalog, None)
    assert not {model.address for model in models.values()} & {model.address for model in before.values()}
    for cell in chosen.cells:
        assert Cell.from_dict(cell.to_dict()) == cell
        assert replace(cell, backbone=replace(cell.backbone, precision=None)).id != cell.id


def test_a_block_overrides_the_grid_and_a_method_overrides_both(load: LoadGrid) -> None:
    block = GRID.replace("  - track", "  - precision: float32\n    track").replace(
        "      - trained", "      - trained: {precision: bfloat16}"
    )
    assert formats(load(f"precision: tf32\n{block}")) == {"plain": {"float32"}, "trained": {"bfloat16"}}
    assert formats(load(block, set_=["precision=tf32"])) == {"plain": {"tf32"}, "trained": {"bfloat16"}}
    assert formats(load(block, set_=["trained.precision=tf32"])) == {"plain": {"float32"}, "trained": {"tf32"}}


def test_two_formats_of_one_method_have_two_labels(load: LoadGrid) -> None:
    text = f"{GRID}      - trained: {{precision: float32}}\n"
    assert labels(load(text)) == {"plain", "trained[precision=default]", "trained[precision=float32]"}
    with pytest.raises(UserError, match="same"):
        load(text.replace("trained: {", "trained: {as: same, ").replace("- trained\n", "- trained: {as: same}\n"))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"precision: half\n{GRID}", {}),
        (GRID.replace("- trained", "- trained: {precision: fp16}"), {}),
        (GRID, {"set_": ["trained.precision=fp16"]}),
        (GRID, {"set_": ["precision=fp16"]}),
    ],
    ids=["grid", "method", "override of a method", "override of a block"],
)
def test_an_unknown_format_names_the_known_ones(text: str, options: dict[str, list[str]], load: LoadGrid) -> None:
    with pytest.raises(UserError) as caught:
        load(text, **options)
    assert "precision" in str(caught.value)
    assert "bfloat16" in str(caught.value)
