"""The project's own grids expand, and hold the cells that they promise."""

from collections import Counter

import pytest

from bolt.methods import METHODS
from bolt.protocol import STRICT
from orchestrator.artifacts.required import configured_method
from orchestrator.catalog import Catalog
from orchestrator.grid import grid_names, load_grid
from tests.helpers.small_grid import STUB_METHODS


@pytest.mark.slow
@pytest.mark.parametrize("name", grid_names())
def test_every_shipped_grid_expands_without_data(catalog: Catalog, name: str) -> None:
    grid = load_grid(name, catalog)
    assert grid.cells
    assert grid.title
    assert grid.description
    assert len(set(grid.cells)) == len(grid.cells)
    for cell in grid.cells:
        assert cell.dataset.name not in {source.dataset for source in cell.sources}
        method, settings = configured_method(cell)
        assert method.needs_sources(settings) == bool(cell.sources)
        assert {ref.name for ref in cell.evaluate_on} <= set(grid.datasets)
        if METHODS[cell.method.name].meta_recipe is None:  # else its sources are images
            assert grid.sources.keys() >= set(cell.sources)
        assert grid.label(cell)


@pytest.mark.slow
def test_the_papers_grids_cover_the_papers_cells(catalog: Catalog) -> None:
    grid = load_grid("fewshot", catalog)
    targets = {cell.dataset.name for cell in grid.cells}
    assert len(targets) == 32
    bolt = Counter((c.backbone.name, c.dataset.name, c.shots) for c in grid.cells if c.method.name == "bolt")
    assert len(bolt) == 3 * 32 * 5
    assert set(bolt.values()) == {3}
    for cell in grid.cells:
        exempt = (cell.dataset.name, cell.shots) == ("flowers102", 16)
        assert cell.protocol == (STRICT.with_switches(short_classes="take_all") if exempt else STRICT)
        if cell.sources:
            assert len(cell.sources) == (16 if cell.domain == "general" else 14)


def test_out_of_distribution_cells_score_five_datasets_at_once(catalog: Catalog) -> None:
    grid = load_grid("ood", catalog)
    assert {cell.dataset.name for cell in grid.cells} == {"imagenet"}
    assert {len(cell.evaluate_on) for cell in grid.cells} == {5}
    assert {len(cell.sources) for cell in grid.cells} == {0, 17}


@pytest.mark.slow
def test_full_is_the_union_of_the_papers_grids_and_demo_a_part_of_demo_full(catalog: Catalog) -> None:
    parts = [set(load_grid(name, catalog).cells) for name in ("fewshot", "ood", "tta", "ablations", "meta")]
    assert set(load_grid("full", catalog).cells) == set.union(*parts)
    assert set(load_grid("demo", catalog).cells) <= set(load_grid("demo-full", catalog).cells)


@pytest.mark.parametrize("name", ["leaderboard", "demo-full"])
def test_the_grids_of_every_method_have_every_method(catalog: Catalog, name: str) -> None:
    """demo-full lacked twelve methods, and the page of grids says that it has them all."""
    found = {(cell.method.name, cell.track) for cell in load_grid(name, catalog).cells}
    own = METHODS.keys() - {stub.name for stub in STUB_METHODS}
    every = {(each, track) for each in own for track in METHODS[each].tracks - {"ood", "meta"}}
    assert every - found == {("auto", "fewshot"), ("meta_init", "fewshot")}


@pytest.mark.parametrize("name", ["eleven-fewshot", "eleven-base-to-new", "eleven-cross-dataset"])
def test_the_fields_grids_have_the_methods_that_learn_prompts(catalog: Catalog, name: str) -> None:
    learn_prompts = {"coop", "kgcoop", "maple", "promptsrc", "clipfit"}
    tracks = {"fewshot", "base_to_new", "cross_dataset", "ood"}
    found = {(cell.track, cell.method.name) for cell in load_grid(name, catalog).cells}
    of_grid = {track for track, _ in found} & tracks
    assert of_grid
    assert {(track, method) for track in of_grid for method in learn_prompts} <= found
