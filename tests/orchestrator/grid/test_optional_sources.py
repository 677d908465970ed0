"""``sources: {required: false}``: methods that need sources are left out where a target has none."""

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid


def test_methods_that_need_sources_are_left_out_without_any(load: LoadGrid) -> None:
    text = GRID.replace("[one, two, four]", "[wide, one]")
    with pytest.raises(UserError, match="no source for wide"):
        load(text)
    grid = load(text.replace("    shots:", "    sources: {required: false}\n    shots:"))
    methods = {name: {c.method.name for c in grid.cells if c.dataset.name == name} for name in ("wide", "one")}
    assert methods == {"wide": {"plain"}, "one": {"plain", "trained"}}


def test_the_grid_own_has_methods_of_both_kinds() -> None:
    grid = load_grid("own", load_catalog())
    methods = {cell.method.name for cell in grid.cells}
    assert {"zero_shot", "lp_plus_plus", "lora", "full_finetune"} <= methods
    aerial = load_grid("own", load_catalog(), set_=["sources={domain: aerial}"])
    assert {"bolt", "atlas", "ties"} <= {cell.method.name for cell in aerial.cells}
