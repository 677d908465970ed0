"""Which sources a cell has, and grids whose methods need none."""

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid import load_grid
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid


def test_the_pool_is_the_whole_domain_whatever_targets_are_chosen(load: LoadGrid) -> None:
    grid = load(GRID.replace("[one, two, four]", "[one]"))
    cell = grid.cells[-1]
    assert (cell.sources_rule, [s.dataset for s in cell.sources]) == ("leave_one_out", ["two", "three", "four"])
    assert set(grid.datasets) == {"one", "two", "three", "four"}
    assert (grid.cells[0].sources_rule, grid.cells[0].sources) == ("none", ())


def test_leave_group_out_leaves_the_kin_out(load: LoadGrid) -> None:
    grid = load(GRID.replace("    shots:", "    sources: leave_group_out\n    shots:"))
    pools = {cell.dataset.name: [s.dataset for s in cell.sources] for cell in grid.cells if cell.sources}
    assert pools == {"one": ["three", "four"], "two": ["three", "four"], "four": ["one", "two", "three"]}


@pytest.mark.parametrize(
    "choice", ["{rule: leave_one_out, datasets: [two, wide, one]}", "{datasets: [one, two, wide, two]}"]
)
def test_the_pool_can_be_named(load: LoadGrid, choice: str) -> None:
    grid = load(GRID.replace("    shots:", f"    sources: {choice}\n    shots:").replace("[one, two, four]", "[one]"))
    assert [s.dataset for s in grid.cells[-1].sources] == ["two", "wide"]


def test_what_is_scored_on_is_never_a_source(load: LoadGrid) -> None:
    text = GRID.replace("fewshot", "ood").replace("    shots:", "    evaluate_on: [one, seen, two]\n    shots:")
    cell = load(text.replace("[one, two, four]", "[one]")).cells[-1]
    assert [ref.name for ref in cell.evaluate_on] == ["one", "seen", "two"]
    assert [s.dataset for s in cell.sources] == ["three", "four"]


def test_scoring_on_another_split_of_the_same_images_is_noted(load: LoadGrid) -> None:
    text = GRID.replace("fewshot", "cross_dataset").replace("[one, two, four]", "[eleven_dtd]")
    text = text.replace("      - plain\n      - trained", "      - zero_shot")
    (note,) = load(text.replace("    shots:", "    evaluate_on: [dtd, eleven_eurosat]\n    shots:")).notes
    assert note.startswith("note: dtd has images of eleven_dtd: ")


def test_recipes_resolve_epochs_per_dataset(load: LoadGrid) -> None:
    grid = load(GRID.replace("fine_tuning: {epochs: 2}", "fine_tuning: {batch_size: 8, learning_rate: 1}"))
    recipes = {ref.dataset: plan.recipe for ref, plan in grid.sources.items()}
    assert recipes["four"] == SourceRecipe(epochs=3, batch_size=8, learning_rate=1.0)
    assert recipes["one"] == SourceRecipe(epochs=2000 * 8 // 40, batch_size=8, learning_rate=1.0)
    assert {plan.backbone.name for plan in grid.sources.values()} == {"tiny-clip"}


def test_a_training_that_ends_within_its_warm_up_is_noted(load: LoadGrid) -> None:
    """Regression: with ``--set fine_tuning.epochs=2`` the source models were the pre-trained tower, nearly."""
    assert not load(set_=["fine_tuning.warmup_steps=2"]).notes, "two epochs of one batch of 40 images"
    (note,) = load(set_=["fine_tuning.warmup_steps=3"]).notes
    assert "of two, three, four, one ends within its warm-up of 3 steps, before the learning rate reaches 1e-05" in note


def test_another_recipe_makes_other_sources_and_other_cells(load: LoadGrid) -> None:
    first, second = load(), load(set_=["fine_tuning.epochs=3"])
    assert not set(first.sources) & set(second.sources)
    same = set(first.cells) & set(second.cells)
    assert {cell.method.name for cell in same} == {"plain"}


def test_a_count_draws_a_subset_of_the_sources_that_grows_with_it(load: LoadGrid) -> None:
    def drawn(count: int) -> dict[tuple[str, int], set[str]]:
        grid = load(GRID.replace("    shots:", f"    sources: {{rule: leave_one_out, count: {count}}}\n    shots:"))
        trained = [cell for cell in grid.cells if cell.method.name == "trained"]
        return {(cell.dataset.name, cell.seed): {source.dataset for source in cell.sources} for cell in trained}

    one, two, three = drawn(1), drawn(2), drawn(3)
    assert all(len(one[key]) == 1 and len(two[key]) == 2 and len(three[key]) == 3 for key in one)
    assert all(one[key] < two[key] < three[key] for key in one)
    assert len({frozenset(two["one", seed]) | {str(seed)} for seed in (1, 2)}) == 2
    assert all(target not in names for (target, _), names in three.items())
    with pytest.raises(UserError, match=r"sources\.count: count is 9, but one has 3 sources"):
        drawn(9)


META = "meta_init: {meta_support: 8, meta_query: 8}"
"""Of datasets as small as these."""


def test_a_meta_learned_start_has_images_as_sources(load: LoadGrid) -> None:
    text = GRID.replace("fewshot", "meta").replace("      - plain\n      - trained", f"      - {META}\n      - bolt")
    grid = load(text)
    by_method = {cell.method.name: cell for cell in grid.cells if cell.dataset.name == "one"}
    images, models = by_method["meta_init"].sources, by_method["bolt"].sources
    assert [source.dataset for source in images] == [source.dataset for source in models]
    assert not {source.digest for source in images} & {source.digest for source in models}
    assert set(grid.sources) == {source for cell in grid.cells if cell.method.name == "bolt" for source in cell.sources}
    first, again = (
        [cell for cell in each.cells if cell.method.name == "meta_init"]
        for each in (grid, load(text.replace("epochs: 2", "epochs: 3")))
    )
    assert first == again, "the recipe of source models is none of images"
    with pytest.raises(UserError, match=r"episode of meta_init has 532 images, but \w+ has 40 to train on") as told:
        load(text.replace("meta_support: 8", "meta_support: 500").replace("meta_query: 8", "meta_query: 32"))
    assert "blocks[0].methods[0]" in str(told.value)


def test_a_swapped_activation_swaps_the_backbone_and_keeps_its_sources(load: LoadGrid) -> None:
    strict = load(GRID)
    swapped = load(GRID + "    protocol: {name: strict, activation: swapped}\n")
    assert {cell.backbone for cell in strict.cells}.isdisjoint({cell.backbone for cell in swapped.cells})
    assert set(strict.sources) == set(swapped.sources)


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
