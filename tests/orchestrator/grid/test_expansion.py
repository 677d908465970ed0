"""How a block becomes cells: the product, identities, included files, protocols and labels."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt.protocol import PUBLISHED
from orchestrator.catalog import Catalog
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid, cell_keys, labels


def test_ten_thousand_cells_expand(catalog: Catalog, load: LoadGrid) -> None:
    names = ", ".join(entry.name for d in ("general", "remote_sensing") for entry in catalog.datasets_of(d))
    text = (
        "title: Many\nprotocol: {name: strict, short_classes: take_all}\nblocks:\n"
        f"  - {{track: fewshot, backbones: [vit-b-32, vit-b-16, vit-l-14], datasets: [{names}],"
        " shots: [1, 2, 4, 8, 16], seeds: [1, 2, 3], methods: [trained: {rate: 1}, trained: {rate: 2},"
        " trained: {rate: 3}, trained: {rate: 4}, trained: {rate: 5}, trained: {rate: 6}, trained: {rate: 7}]}\n"
    )
    assert len(load(text).cells) == 3 * 32 * 5 * 3 * 7


def test_identities_of_a_small_grid_are_pinned(load: LoadGrid) -> None:
    """A change here renames results: raise a version on purpose, not by accident."""
    grid = load(GRID.replace("tiny-clip", "vit-b-32"))
    found = [cell.id for cell in grid.cells[:3]]
    assert found == [
        "fewshot.vit-b-32.one.k0.plain.s0--3975f826",
        "fewshot.vit-b-32.one.k1.trained.s1--f5f32065",
        "fewshot.vit-b-32.one.k1.trained.s2--3b6aa757",
    ]


def test_a_method_without_support_is_one_cell_per_target(load: LoadGrid) -> None:
    found = cell_keys(load())
    assert [key for key in found if key[0] == "plain"] == [("plain", name, 0, 0) for name in ("one", "two", "four")]
    assert sum(key[0] == "trained" for key in found) == 3 * 2 * 2


def test_every_setting_and_the_version_are_in_the_cell(load: LoadGrid) -> None:
    cell = load(GRID.replace("- trained", "- trained: {rate: 1e-3}")).cells[-1]  # a number in this notation, too
    assert cell.method.settings == (("mode", "slow"), ("ranks", (1, 2)), ("rate", 0.001))
    assert cell.method.version == 3


def test_equal_cells_are_one_whatever_their_label_and_single_values_stand_for_lists(load: LoadGrid) -> None:
    assert load(GRID + GRID.split("blocks:\n")[1]).cells == load().cells
    assert load(GRID.replace("- trained", "- trained: {as: mine}")).cells == load().cells
    text = GRID.replace("[1, 4]", "4").replace("[1, 2]", "1").replace("[tiny-clip]", "tiny-clip")
    assert len(load(text.replace("[one, two, four]", "one")).cells) == 2


def test_protocols_by_name_and_by_switch(load: LoadGrid) -> None:
    assert load("protocol: published\n" + GRID).cells[0].protocol == PUBLISHED
    text = GRID + "    protocol: {name: strict, sigma_sign: relu, schedule_offset: true}\n"
    protocol = load(text).cells[0].protocol
    assert (protocol.sigma_sign, protocol.schedule_offset) == ("relu", True)
    assert protocol.name == "strict+schedule_offset=True,sigma_sign=relu"


def test_includes_are_unions_and_paths_are_relative_to_the_file(load: LoadGrid, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "part.yaml").write_text(GRID.replace("[one, two, four]", "[two]"), encoding="utf-8")
    grid = load("include: [sub/part.yaml]\n" + GRID.replace("[one, two, four]", "[one, two]"))
    assert [cell.dataset.name for cell in grid.cells].index("one") > 0
    assert len(grid.cells) == 2 * (1 + 4)


def test_labels_name_what_varies(load: LoadGrid) -> None:
    assert labels(load()) == {"plain", "trained"}
    text = GRID + "      - trained: {rate: 1e-3}\n      - trained: {rate: 1e-3, mode: fast, as: quick}\n"
    assert labels(load(text)) == {"plain", "trained[rate=0.1]", "trained[rate=0.001]", "quick"}
    text = GRID + "      - trained: {ranks: [4], mode: fast}\n"
    assert labels(load(text)) == {"plain", "trained[mode=slow,ranks=1/2]", "trained[mode=fast,ranks=4]"}
    block = GRID.partition("blocks:\n")[2].replace(
        "  - track: fewshot", "  - track: fewshot\n    sources: leave_group_out", 1
    )
    assert labels(load(GRID + block)) == {"plain", "trained [leave_one_out]", "trained [leave_group_out]"}


def test_a_preset_names_its_label_and_leaves_only_its_settings_in_the_cell(load: LoadGrid) -> None:
    grid = load(GRID.replace("- trained", "- lora\n      - lora: {preset: clip_lora}"))
    labels = {grid.label(cell): dict(cell.method.settings) for cell in grid.cells if cell.method.name == "lora"}
    assert labels["lora[clip_lora]"]["rank"] == 2
    assert labels["lora"]["rank"] == 16
    with pytest.raises(UserError, match=r"unknown preset of lora 'clip-lora'\s+did you mean 'clip_lora'"):
        load(GRID.replace("- trained", "- lora: {preset: clip-lora}"))


names = st.lists(st.sampled_from(["one", "two", "four"]), min_size=1, max_size=4)
small = st.lists(st.integers(1, 4), min_size=1, max_size=3)
chosen = st.lists(st.sampled_from(["plain", "trained", "zero_shot"]), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datasets=names, shots=small, seeds=small, methods=chosen)
def test_an_expansion_is_once(
    load: LoadGrid, datasets: list[str], shots: list[int], seeds: list[int], methods: list[str]
) -> None:
    grid = load(
        f"title: T\nblocks:\n  - {{track: fewshot, backbones: tiny-clip, datasets: {datasets}, shots: {shots},"
        f" seeds: {seeds}, methods: {methods}}}\n".replace("'", "")
    )
    expected = {
        (method, dataset, k, seed) if method == "trained" else (method, dataset, 0, 0)
        for method in methods for dataset in datasets for k in shots for seed in seeds
    }  # fmt: skip
    assert len(grid.cells) == len(expected)
    assert set(cell_keys(grid)) == expected
    assert len({cell.id for cell in grid.cells}) == len(grid.cells)


def test_how_methods_are_compared_changes_no_cell(load: LoadGrid) -> None:
    plain, chosen = load(), load(f"{GRID}\nverdict: {{smallest_difference: 2.5, cost: memory}}\n")
    assert (plain.smallest_difference, chosen.smallest_difference) == (1.0, 2.5)
    assert (plain.saves, chosen.saves) == ("operations", "memory")
    assert chosen.cells == plain.cells
    with pytest.raises(UserError, match="smallest_difference"):
        load(f"{GRID}\nverdict: {{smallest_difference: 0}}\n")
    with pytest.raises(UserError, match="cost"):
        load(f"{GRID}\nverdict: {{cost: seconds}}\n")
