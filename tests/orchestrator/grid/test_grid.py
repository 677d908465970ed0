"""Grids: the shipped ones expand, the rules of expansion hold, and every mistake says where it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt.methods import METHODS, Method
from bolt.protocol import PUBLISHED, STRICT
from bolt.task.task import Adapted, Task
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid import Grid, grid_names, load_grid
from orchestrator.util.errors import UserError

CATALOG = """
domains:
  little: {title: Little}
  lonely: {title: Lonely}
datasets:
  one: &entry
    title: One
    domain: little
    route: {kind: manual, instructions: none}
    prompts: plain
    classes: 2
    sizes: {train: 40, test: 10}
    kin: twins
    licence: CC0
  two: {<<: *entry, title: Two}
  three: {<<: *entry, title: Three, kin: null, smallest_class: 5}
  four: {<<: *entry, title: Four, kin: null, fine_tune_epochs: 3}
  seen: {<<: *entry, title: Seen, sizes: {train: 0, test: 10}, kin: null}
  wide: {<<: *entry, title: Wide, classes: 4, domain: lonely}
"""

GRID = """
title: Test
fine_tuning: {epochs: 2}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [one, two, four]
    shots: [1, 4]
    seeds: [1, 2]
    methods:
      - plain
      - trained
"""


@dataclass(frozen=True)
class TrainedSettings:
    rate: float = 0.1
    ranks: tuple[int, ...] = (1, 2)
    mode: str = "slow"

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; it must be above zero")


@dataclass(frozen=True)
class NoSettings:
    pass


def never(task: Task, settings: Any) -> Adapted:
    raise AssertionError("a grid adapts nothing")


@pytest.fixture(scope="module", autouse=True)
def methods() -> Any:
    """Two methods of the tests' own beside the real ones: one that needs nothing, one that needs everything."""
    stand_ins = [
        Method(
            "plain", "Plain", "", NoSettings, never, uses_support=False, tracks=frozenset({"fewshot", "ood", "tta"})
        ),
        Method("trained", "Trained", "", TrainedSettings, never, version=3, uses_sources=True),
        Method("silent", "Silent", "", NoSettings, never, tracks=frozenset({"tta"})),
    ]
    for method in stand_ins:
        METHODS.register(method)
    yield
    for method in stand_ins:
        del METHODS._methods[method.name]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    path = tmp_path_factory.mktemp("catalog") / "little.yaml"
    path.write_text(CATALOG, encoding="utf-8")
    return load_catalog([path])


Load = Callable[..., Grid]


@pytest.fixture
def load(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a grid from its text; the file is ``g.yaml`` in the current folder."""
    monkeypatch.chdir(tmp_path)

    def from_text(text: str = GRID, **options: Any) -> Grid:
        Path("g.yaml").write_text(text, encoding="utf-8")
        return load_grid("g.yaml", catalog, **options)

    return from_text


def keys(grid: Grid) -> list[tuple[str, str, int, int]]:
    return [(cell.method.name, cell.dataset.name, cell.shots, cell.seed) for cell in grid.cells]


# -- what ships ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", grid_names())
def test_every_shipped_grid_expands_without_data(catalog: Catalog, name: str) -> None:
    grid = load_grid(name, catalog)
    assert grid.cells
    assert grid.title
    assert grid.description
    assert len(set(grid.cells)) == len(grid.cells)
    for cell in grid.cells:
        assert cell.dataset.name not in {source.dataset for source in cell.sources}
        assert METHODS[cell.method.name].uses_sources == bool(cell.sources)
        assert {ref.name for ref in cell.evaluate_on} <= set(grid.datasets)
        if METHODS[cell.method.name].meta_recipe is None:  # else its sources are images
            assert all(grid.sources[source].dataset == source.dataset for source in cell.sources)
        assert grid.label(cell)


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


def test_full_is_the_union_of_the_papers_grids(catalog: Catalog) -> None:
    parts = [set(load_grid(name, catalog).cells) for name in ("fewshot", "ood", "tta", "ablations", "meta")]
    assert set(load_grid("full", catalog).cells) == set.union(*parts)


def test_demo_and_demo_full_share_cells(catalog: Catalog) -> None:
    assert set(load_grid("demo", catalog).cells) <= set(load_grid("demo-full", catalog).cells)


def test_ten_thousand_cells_expand(catalog: Catalog, load: Load) -> None:
    names = ", ".join(entry.name for d in ("general", "remote_sensing") for entry in catalog.datasets_of(d))
    text = (
        "title: Many\nprotocol: {name: strict, short_classes: take_all}\nblocks:\n"
        f"  - {{track: fewshot, backbones: [vit-b-32, vit-b-16, vit-l-14], datasets: [{names}],"
        " shots: [1, 2, 4, 8, 16], seeds: [1, 2, 3], methods: [trained: {rate: 1}, trained: {rate: 2},"
        " trained: {rate: 3}, trained: {rate: 4}, trained: {rate: 5}, trained: {rate: 6}, trained: {rate: 7}]}\n"
    )
    assert len(load(text).cells) == 3 * 32 * 5 * 3 * 7


# -- rules of expansion ----------------------------------------------------------------------------------------------


def test_identities_of_a_small_grid_are_pinned(load: Load) -> None:
    """A change here renames results: raise a version on purpose, not by accident."""
    grid = load(GRID.replace("tiny-clip", "vit-b-32"))
    found = [cell.id for cell in grid.cells[:3]]
    assert found == [
        "fewshot.vit-b-32.one.k0.plain.s0--3975f826",
        "fewshot.vit-b-32.one.k1.trained.s1--f5f32065",
        "fewshot.vit-b-32.one.k1.trained.s2--3b6aa757",
    ]


def test_a_method_without_support_is_one_cell_per_target(load: Load) -> None:
    found = keys(load())
    assert [key for key in found if key[0] == "plain"] == [("plain", name, 0, 0) for name in ("one", "two", "four")]
    assert sum(key[0] == "trained" for key in found) == 3 * 2 * 2


def test_every_setting_and_the_version_are_in_the_cell(load: Load) -> None:
    cell = load(GRID.replace("- trained", "- trained: {rate: 1}")).cells[-1]
    assert cell.method.settings == (("mode", "slow"), ("ranks", (1, 2)), ("rate", 1.0))
    assert cell.method.version == 3


def test_the_pool_is_the_whole_domain_whatever_targets_are_chosen(load: Load) -> None:
    grid = load(GRID.replace("[one, two, four]", "[one]"))
    cell = grid.cells[-1]
    assert (cell.sources_rule, [s.dataset for s in cell.sources]) == ("leave_one_out", ["two", "three", "four"])
    assert set(grid.datasets) == {"one", "two", "three", "four"}
    assert (grid.cells[0].sources_rule, grid.cells[0].sources) == ("none", ())


def test_leave_group_out_leaves_the_kin_out(load: Load) -> None:
    grid = load(GRID.replace("    shots:", "    sources: leave_group_out\n    shots:"))
    pools = {cell.dataset.name: [s.dataset for s in cell.sources] for cell in grid.cells if cell.sources}
    assert pools == {"one": ["three", "four"], "two": ["three", "four"], "four": ["one", "two", "three"]}


@pytest.mark.parametrize(
    "choice", ["{rule: leave_one_out, datasets: [two, wide, one]}", "{datasets: [one, two, wide, two]}"]
)
def test_the_pool_can_be_named(load: Load, choice: str) -> None:
    grid = load(GRID.replace("    shots:", f"    sources: {choice}\n    shots:").replace("[one, two, four]", "[one]"))
    assert [s.dataset for s in grid.cells[-1].sources] == ["two", "wide"]


def test_what_is_scored_on_is_never_a_source(load: Load) -> None:
    text = GRID.replace("fewshot", "ood").replace("    shots:", "    evaluate_on: [one, seen, two]\n    shots:")
    cell = load(text.replace("[one, two, four]", "[one]")).cells[-1]
    assert [ref.name for ref in cell.evaluate_on] == ["one", "seen", "two"]
    assert [s.dataset for s in cell.sources] == ["three", "four"]


def test_recipes_resolve_epochs_per_dataset(load: Load) -> None:
    grid = load(GRID.replace("fine_tuning: {epochs: 2}", "fine_tuning: {batch_size: 8, learning_rate: 1}"))
    recipes = {plan.dataset: plan.recipe for plan in grid.sources.values()}
    assert recipes["four"] == SourceRecipe(epochs=3, batch_size=8, learning_rate=1.0)
    assert recipes["one"].epochs == 2000 * 8 // 40
    assert {plan.backbone for plan in grid.sources.values()} == {"tiny-clip"}


def test_another_recipe_makes_other_sources_and_other_cells(load: Load) -> None:
    first, second = load(), load(set_=["fine_tuning.epochs=3"])
    assert not set(first.sources) & set(second.sources)
    same = set(first.cells) & set(second.cells)
    assert {cell.method.name for cell in same} == {"plain"}


def test_equal_cells_of_several_blocks_are_one(load: Load) -> None:
    block = GRID.split("blocks:\n")[1]
    assert load(GRID + block).cells == load().cells


def test_tta_cells_have_seeds_but_no_shots(load: Load) -> None:
    text = GRID.replace("fewshot", "tta").replace("    shots: [1, 4]\n", "").replace("- trained", "- silent")
    assert keys(load(text.replace("[one, two, four]", "[one]"))) == [
        ("plain", "one", 0, 0), ("silent", "one", 0, 1), ("silent", "one", 0, 2),
    ]  # fmt: skip


def test_single_values_stand_for_lists(load: Load) -> None:
    text = GRID.replace("[1, 4]", "4").replace("[1, 2]", "1").replace("[tiny-clip]", "tiny-clip")
    assert len(load(text.replace("[one, two, four]", "one")).cells) == 2


def test_scientific_notation_is_a_number(load: Load) -> None:
    cell = load(GRID.replace("- trained", "- trained: {rate: 1e-3}")).cells[-1]
    assert cell.method.settings_dict()["rate"] == 0.001


def test_protocols_by_name_and_by_switch(load: Load) -> None:
    assert load("protocol: published\n" + GRID).cells[0].protocol == PUBLISHED
    text = GRID + "    protocol: {name: strict, sigma_sign: relu, schedule_offset: true}\n"
    protocol = load(text).cells[0].protocol
    assert (protocol.sigma_sign, protocol.schedule_offset) == ("relu", True)
    assert protocol.name == "strict+schedule_offset=True,sigma_sign=relu"


def test_includes_are_unions_and_paths_are_relative_to_the_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "part.yaml").write_text(GRID.replace("[one, two, four]", "[two]"), encoding="utf-8")
    grid = load("include: [sub/part.yaml]\n" + GRID.replace("[one, two, four]", "[one, two]"))
    assert [cell.dataset.name for cell in grid.cells].index("one") > 0
    assert len(grid.cells) == 2 * (1 + 4)


# -- labels ----------------------------------------------------------------------------------------------------------


def labels(grid: Grid) -> set[str]:
    return {grid.label(cell) for cell in grid.cells}


def test_labels_name_what_varies(load: Load) -> None:
    assert labels(load()) == {"plain", "trained"}
    text = GRID + "      - trained: {rate: 1e-3}\n      - trained: {rate: 1e-3, mode: fast, as: quick}\n"
    assert labels(load(text)) == {"plain", "trained[rate=0.1]", "trained[rate=0.001]", "quick"}
    text = GRID + "      - trained: {ranks: [4], mode: fast}\n"
    assert labels(load(text)) == {"plain", "trained[mode=slow,ranks=1/2]", "trained[mode=fast,ranks=4]"}


def test_a_label_is_no_part_of_the_identity(load: Load) -> None:
    assert load(GRID.replace("- trained", "- trained: {as: mine}")).cells == load().cells


# -- filters, overrides, limits --------------------------------------------------------------------------------------


def test_only_keeps_what_matches(load: Load) -> None:
    grid = load(only=["method=trained", "k=4", "dataset=one,two", "seed=2"])
    assert keys(grid) == [("trained", "one", 4, 2), ("trained", "two", 4, 2)]
    assert keys(load(only=["method=trained", "shots=1", "label=trained", "dataset=one", "seed=1"])) == [
        ("trained", "one", 1, 1)
    ]
    for option in ("track=fewshot", "backbone=tiny-clip", "domain=little", "protocol=strict"):
        assert load(only=[option]).cells == load().cells


def test_methods_without_k_or_seed_stay_beside_the_others(load: Load) -> None:
    assert {key[0] for key in keys(load(only=["k=4", "seed=1"]))} == {"plain", "trained"}
    assert {key[0] for key in keys(load(only=["k=0"]))} == {"plain"}


def test_a_filter_narrows_the_sources_and_keeps_the_labels(load: Load) -> None:
    text = GRID + "      - trained: {rate: 1}\n"
    grid = load(text, only=["label=trained[rate=1]", "dataset=one"])
    assert labels(grid) == {"trained[rate=1]"}
    assert {plan.dataset for plan in grid.sources.values()} == {"two", "three", "four"}
    assert load(text, only=["method=plain"]).sources == {}


def test_only_again_with_the_same_key_widens(load: Load) -> None:
    assert {key[0] for key in keys(load(only=["method=plain", "method=trained"]))} == {"plain", "trained"}


def test_limit_keeps_the_first(load: Load) -> None:
    assert load(limit=3).cells == load().cells[:3]
    assert load(limit=10**6).cells == load().cells


@pytest.mark.parametrize(
    ("options", "check"),
    [
        (["shots=[2]"], lambda cell: cell.shots in (0, 2)),
        (["shots=2"], lambda cell: cell.shots in (0, 2)),
        (["seeds=[3]"], lambda cell: cell.seed in (0, 3)),
        (["protocol=published"], lambda cell: cell.protocol == PUBLISHED),
        (["protocol.sigma_sign=relu"], lambda cell: cell.protocol.name == "strict+sigma_sign=relu"),
        (["protocol={name: published, sigma_sign: free}"], lambda cell: cell.protocol.sigma_sign == "free"),
        (["trained.rate=1e-3"], lambda cell: cell.method.settings_dict().get("rate", 0.001) == 0.001),
        (["trained.ranks=[7]"], lambda cell: cell.method.settings_dict().get("ranks", (7,)) == (7,)),
        (["datasets=[two]"], lambda cell: cell.dataset.name == "two"),
        (["domains=[little]", "shots=1"], lambda cell: cell.dataset.name in ("one", "two", "three", "four")),
        (["methods=[plain]"], lambda cell: cell.method.name == "plain"),
        (["sources=leave_group_out"], lambda cell: cell.sources_rule in ("none", "leave_group_out")),
        (["track=ood", "evaluate_on=[one, two, four]"], lambda cell: len(cell.evaluate_on) == 3),
    ],
)
def test_set_overrides(load: Load, options: list[str], check: Callable[[Cell], bool]) -> None:
    grid = load(set_=options)
    assert all(check(cell) for cell in grid.cells)
    assert grid.cells != load().cells


def test_shots_are_set_where_a_track_takes_them(catalog: Catalog) -> None:
    grid = load_grid("full", catalog, set_=["shots=[2]"])
    assert {cell.shots for cell in grid.cells if cell.track != "tta"} == {0, 2}
    assert any(cell.track == "tta" for cell in grid.cells)


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("- trained", "- traned", "g.yaml: blocks[0].methods[1]: unknown method 'traned'\n  did you mean 'trained'"),
        (
            "- trained",
            "- trained: {rat: 1}",
            "g.yaml: blocks[0].methods[1]: unknown setting of trained 'rat'\n  did you mean 'rate'",
        ),
        (
            "- trained",
            "- trained: {rate: fast}",
            "g.yaml: blocks[0].methods[1]: trained.rate is 'fast'; it takes a float",
        ),
        ("- trained", "- trained: {rate: -1}", "g.yaml: blocks[0].methods[1]: rate is -1.0; it must be above zero"),
        ("- trained", "- trained: 3", "g.yaml: blocks[0].methods[1]: the settings of trained are 3"),
        (
            "- trained",
            "- {trained: {}, plain: {}}",
            "g.yaml: blocks[0].methods[1]: {'trained': {}, 'plain': {}} is not one method",
        ),
        (
            "- trained",
            "- silent",
            "g.yaml: blocks[0].methods[1]: silent cannot be measured on the fewshot track\n  methods that can: ",
        ),
        ("two, four", "twwo, four", "g.yaml: blocks[0].datasets[1]: unknown dataset 'twwo'\n  did you mean 'two'"),
        (
            "datasets: [one, two, four]",
            "domains: [litle]",
            "g.yaml: blocks[0].domains[0]: unknown domain 'litle'\n  did you mean 'little'",
        ),
        (
            "datasets: [one, two, four]",
            "",
            "g.yaml: blocks[0]: a block names its targets by either domains or datasets",
        ),
        ("datasets: [one, two, four]", "datasets: [one]\n    domains: [little]", "by either domains or datasets"),
        (
            "tiny-clip",
            "tiny-clipp",
            "g.yaml: blocks[0].backbones[0]: unknown backbone 'tiny-clipp'\n  did you mean 'tiny-clip'",
        ),
        ("fewshot", "few-shot", "g.yaml: blocks[0].track: unknown track 'few-shot'\n  did you mean 'fewshot'"),
        ("    shots:", "    shot:", "g.yaml: blocks[0]: unknown field 'shot'\n  did you mean 'shots'"),
        ("title: Test", "titel: Test", "g.yaml: unknown field 'titel'\n  did you mean 'title'"),
        ("title: Test\n", "", "g.yaml: title: this field is needed"),
        (
            "title: Test",
            "title: Test\nprotocol: strickt",
            "g.yaml: blocks[0].protocol: unknown protocol 'strickt'\n  did you mean 'strict'",
        ),
        (
            "title: Test",
            "title: Test\nprotocol: {name: strict, sigma: relu}",
            "unknown switch 'sigma'\n  did you mean 'sigma_sign'",
        ),
        (
            "title: Test",
            "title: Test\nprotocol: {name: strict, sigma_sign: up}",
            "protocol.sigma_sign: sigma_sign is 'free' or 'relu', not 'up'",
        ),
        (
            "title: Test",
            "title: Test\nprotocol: {name: strict, schedule_offset: 1}",
            "schedule_offset is false or true, not 1",
        ),
        ("title: Test", "title: Test\nprotocol: {sigma_sign: relu}", "is not a protocol"),
        ("epochs: 2", "epoch: 2", "g.yaml: fine_tuning: unknown field 'epoch'\n  did you mean 'epochs'"),
        ("epochs: 2", "epochs: 0", "g.yaml: fine_tuning: epochs is 0; at least one is needed"),
        ("epochs: 2", "epochs: 2.5", "g.yaml: fine_tuning: epochs is 2.5, not a whole number"),
        ("epochs: 2", "learning_rate: fast", "learning_rate is 'fast', not a number"),
        ("epochs: 2", "clip_norm: 0", "clip_norm is 0.0; it must be above zero"),
        ("epochs: 2", "warmup_steps: -1", "warmup_steps is -1; it cannot be negative"),
        ("epochs: 2", "batch_size: 0", "batch_size is 0; at least one image is needed"),
        ("[1, 4]", "[1, 0]", "g.yaml: blocks[0].shots[1]: k is 0; at least one image per class is needed"),
        ("[1, 4]", "[1, four]", "g.yaml: blocks[0].shots[1]: 'four': input should be a valid integer"),
        ("[1, 4]", "[true]", "g.yaml: blocks[0].shots[0]: True: input should be a valid integer"),
        ("[1, 4]", "[]", "g.yaml: blocks[0].shots: []"),
        (
            "[1, 4]",
            "[1, 21]",
            "g.yaml: blocks[0].shots: k is 21, but the smallest class of one has at most 20 training images",
        ),
        ("shots: [1, 4]", "", "g.yaml: blocks[0].shots: this field is needed: trained learns from a support"),
        ("seeds: [1, 2]", "", "g.yaml: blocks[0].seeds: this field is needed: trained draws a support"),
        ("seeds: [1, 2]", "seeds: [0]", "g.yaml: blocks[0].seeds[0]: the seed is 0; seeds count from 1"),
        (
            "one, two, four",
            "wide",
            "g.yaml: blocks[0].sources: leave_one_out leaves no source for wide\n  give the pool",
        ),
        ("one, two, four", "one, seen", "g.yaml: blocks[0]: seen has no training images; it can only be evaluated on"),
        (
            "    shots:",
            "    sources: leave_two_out\n    shots:",
            "g.yaml: blocks[0].sources.rule: unknown rule 'leave_two_out'\n  did you mean 'leave_one_out'",
        ),
        (
            "    shots:",
            "    sources: {domain: litle}\n    shots:",
            "g.yaml: blocks[0].sources.domain: unknown domain 'litle'",
        ),
        (
            "    shots:",
            "    sources: {datasets: [oen]}\n    shots:",
            "g.yaml: blocks[0].sources.datasets[0]: unknown dataset 'oen'",
        ),
        (
            "    shots:",
            "    sources: {datasets: [seen]}\n    shots:",
            "seen has no training images, so it cannot be a source",
        ),
        (
            "    shots:",
            "    sources: {domain: little, datasets: [one]}\n    shots:",
            "either a domain or a list of datasets",
        ),
        ("    shots:", "    evaluate_on: [two]\n    shots:", "g.yaml: blocks[0].evaluate_on: only the ood track"),
        (
            "title: Test",
            "title: Test\ninclude: [demoo]",
            "g.yaml: include[0]: unknown grid 'demoo'\n  did you mean 'demo'",
        ),
        (
            "title: Test",
            "title: Test\ninclude: [no/such.yaml]",
            "g.yaml: include[0]: there is no grid file no/such.yaml",
        ),
        (
            "title: Test",
            "title: Test\ninclude: [g.yaml]",
            "g.yaml: include[0]: grids include each other in a circle: g -> g",
        ),
        ("- trained", "- trained\n      - trained: {as: again}", "is asked for twice, with no label and 'again'"),
        (
            "- trained",
            "- trained: {as: x}\n      - trained: {rate: 1, as: x}",
            "the label 'x' means two different cells of one row",
        ),
        ("    shots: [1, 4]", "   shots: [1, 4]", "g.yaml, line 8, column 4: not valid YAML"),
        ("title: Test", "title: !!python/object/apply:os.system [ls]", "tags that build objects are refused"),
        ("seeds: [1, 2]", "seeds: [1]\n    seeds: [2]", "the key 'seeds' is given twice"),
        ("title: Test", "title: [", "g.yaml, line 4, column 1: not valid YAML"),
    ],
)
def test_every_mistake_says_where(load: Load, old: str, new: str, expected: str) -> None:
    assert old in GRID
    with pytest.raises(UserError) as caught:
        load(GRID.replace(old, new, 1))
    assert expected in str(caught.value)


def test_tta_takes_no_shots(load: Load) -> None:
    with pytest.raises(UserError, match=r"blocks\[0\]\.shots: the tta track reads no labels"):
        load(GRID.replace("fewshot", "tta").replace("- trained", "- silent"))


def test_scoring_on_other_classes_is_refused(load: Load) -> None:
    text = GRID.replace("fewshot", "ood").replace("    shots:", "    evaluate_on: [one, wide]\n    shots:")
    with pytest.raises(UserError, match=r"evaluate_on\[1\]: wide has 4 classes, which one with its 2"):
        load(text)


def test_short_classes_can_be_taken_whole(load: Load) -> None:
    text = GRID.replace("[one, two, four]", "[three]").replace("[1, 4]", "[8]")
    with pytest.raises(UserError) as caught:
        load(text)
    assert "at most 5 training images\n" in str(caught.value)
    assert "protocol: {name: strict, short_classes: take_all}" in str(caught.value)
    assert load(text + "    protocol: {name: strict, short_classes: take_all}\n").cells
    assert load(text, set_=["protocol.short_classes=take_all"]).cells
    assert load("protocol: published\n" + text).cells


def test_an_empty_grid_is_refused(load: Load) -> None:
    with pytest.raises(UserError, match="the grid is empty"):
        load("title: Nothing\n")


def test_a_circle_of_two_is_seen(load: Load, tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("title: H\ninclude: g.yaml\n", encoding="utf-8")
    with pytest.raises(UserError, match="in a circle: g -> h -> g"):
        load("title: G\ninclude: [h.yaml]\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"only": ["method=boltt"]}, "--only method=boltt: unknown method 'boltt'"),
        ({"only": ["method=traned"]}, "unknown method 'traned'\n  did you mean 'trained'"),
        ({"only": ["methd=plain"]}, "--only methd=plain: unknown key 'methd'\n  did you mean 'method'"),
        ({"only": ["method"]}, "--only method: not of the form key=value,value"),
        ({"only": ["method="]}, "not of the form key=value,value"),
        ({"only": ["k=3"]}, "unknown k '3'\n  known: 0, 1, 4"),
        ({"only": ["k=0", "method=trained"]}, "no cell of the grid matches all of these"),
        ({"set_": ["shots"]}, "--set shots: not of the form key=value"),
        ({"set_": ["shot=[1]"]}, "--set shot=[1]: unknown field 'shot'\n  did you mean 'shots'"),
        ({"set_": ["shots=[0]"]}, "--set: shots[0]: k is 0"),
        ({"set_": ["shots=[x]"]}, "--set: shots[0]: 'x': input should be a valid integer"),
        ({"set_": ["shots=[1"]}, "--set shots=[1: not valid YAML"),
        ({"set_": ["traned.rate=1"]}, "--set traned.rate=1: unknown method or field 'traned'"),
        ({"set_": ["trained.rat=1"]}, "--set: trained: unknown setting of trained 'rat'\n  did you mean 'rate'"),
        ({"set_": ["trained.rate=-1"]}, "--set: trained: rate is -1"),
        ({"set_": ["silent.rate=1"]}, "--set: silent: unknown method of this grid 'silent'"),
        ({"set_": ["protocol=strick"]}, "--set: protocol: unknown protocol 'strick'"),
        ({"set_": ["protocol.sigma=relu"]}, "--set: protocol: unknown switch 'sigma'"),
        ({"set_": ["fine_tuning.epoch=1"]}, "--set: fine_tuning: unknown field 'epoch'"),
        ({"set_": ["evaluate_on=[one]"]}, "--set: evaluate_on: no block of this grid takes this field"),
        ({"set_": ["datasets=[oen]"]}, "--set: datasets[0]: unknown dataset 'oen'"),
        ({"limit": 0}, "--limit: the limit is 0"),
    ],
)
def test_wrong_options_say_which(load: Load, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(**options)
    assert expected in str(caught.value)


def test_an_unknown_grid_suggests_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UserError, match="unknown grid 'dmo'\n  did you mean 'demo'"):
        load_grid("dmo", catalog)
    with pytest.raises(UserError, match="there is no grid file"):
        load_grid("nowhere/mine.yaml", catalog)


# -- properties ------------------------------------------------------------------------------------------------------

names = st.lists(st.sampled_from(["one", "two", "four"]), min_size=1, max_size=4)
small = st.lists(st.integers(1, 4), min_size=1, max_size=3)
chosen = st.lists(st.sampled_from(["plain", "trained", "zero_shot"]), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datasets=names, shots=small, seeds=small, methods=chosen)
def test_an_expansion_is_the_product_once(
    load: Load, datasets: list[str], shots: list[int], seeds: list[int], methods: list[str]
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
    assert set(keys(grid)) == expected
    assert len({cell.id for cell in grid.cells}) == len(grid.cells)


# -- tracks and sources ----------------------------------------------------------------------------------------------


def test_a_count_draws_a_subset_of_the_sources_that_grows_with_it(load: Load) -> None:
    def drawn(count: int) -> dict[tuple[str, int], set[str]]:
        grid = load(GRID.replace("    shots:", f"    sources: {{rule: leave_one_out, count: {count}}}\n    shots:"))
        trained = [cell for cell in grid.cells if cell.method.name == "trained"]
        return {(cell.dataset.name, cell.seed): {source.dataset for source in cell.sources} for cell in trained}

    one, two, three = drawn(1), drawn(2), drawn(3)
    assert all(len(one[key]) == 1 and len(two[key]) == 2 and len(three[key]) == 3 for key in one)
    assert all(one[key] < two[key] < three[key] for key in one)
    assert len({frozenset(two["one", seed]) | {str(seed)} for seed in (1, 2)}) == 2
    assert all(target not in names for (target, _), names in three.items())


def test_more_sources_than_there_are_is_refused(load: Load) -> None:
    text = GRID.replace("    shots:", "    sources: {rule: leave_one_out, count: 9}\n    shots:")
    with pytest.raises(UserError, match=r"sources\.count: count is 9, but one has 3 sources"):
        load(text)


META = "meta_init: {meta_support: 8, meta_query: 8}"
"""Of datasets as small as these."""


def test_a_meta_learned_start_has_images_as_sources(load: Load) -> None:
    text = GRID.replace("fewshot", "meta").replace("      - plain\n      - trained", f"      - {META}\n      - bolt")
    grid = load(text)
    by_method = {cell.method.name: cell for cell in grid.cells if cell.dataset.name == "one"}
    images, models = by_method["meta_init"].sources, by_method["bolt"].sources
    assert [source.dataset for source in images] == [source.dataset for source in models]
    assert not {source.digest for source in images} & {source.digest for source in models}
    assert set(grid.sources) == {source for cell in grid.cells if cell.method.name == "bolt" for source in cell.sources}
    recipe_changed = load(text.replace("epochs: 2", "epochs: 3"))
    assert [c for c in grid.cells if c.method.name == "meta_init"] == [
        c for c in recipe_changed.cells if c.method.name == "meta_init"
    ]


def test_an_episode_larger_than_a_dataset_is_refused(load: Load) -> None:
    text = GRID.replace("fewshot", "meta").replace("- plain", "- bolt")
    text = text.replace("- trained", "- meta_init: {meta_support: 500}")
    with pytest.raises(UserError, match=r"episode of meta_init has 532 images, but \w+ has 40 to train on") as told:
        load(text)
    assert "blocks[0].methods[1]" in str(told.value)


def test_at_test_time_methods_have_seeds_and_settings_of_their_own(load: Load) -> None:
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


def test_a_preset_names_its_label_and_leaves_only_its_settings_in_the_cell(load: Load) -> None:
    grid = load(GRID.replace("- trained", "- lora\n      - lora: {preset: clip_lora}"))
    labels = {grid.label(cell): dict(cell.method.settings) for cell in grid.cells if cell.method.name == "lora"}
    assert labels["lora[clip_lora]"]["rank"] == 2
    assert labels["lora"]["rank"] == 16
    with pytest.raises(UserError, match=r"unknown preset of lora 'clip-lora'\s+did you mean 'clip_lora'"):
        load(GRID.replace("- trained", "- lora: {preset: clip-lora}"))


def test_a_swapped_activation_swaps_the_backbone_and_keeps_its_sources(load: Load) -> None:
    strict = load(GRID)
    swapped = load(GRID + "    protocol: {name: strict, activation: swapped}\n")
    assert {cell.backbone for cell in strict.cells}.isdisjoint({cell.backbone for cell in swapped.cells})
    assert set(strict.sources) == set(swapped.sources)


def test_variants_may_hold_some_of_the_targets_classes_but_no_others(load: Load) -> None:
    text = GRID.replace("fewshot", "ood").replace("[one, two, four]", "[aerial-land]")
    assert load(text.replace("    shots:", "    evaluate_on: [aerial-land, aerial-land-cloudy]\n    shots:"))
    with pytest.raises(UserError, match=r"glyph-kinds has the class '.*', which aerial-land with its 12 does not have"):
        load(text.replace("    shots:", "    evaluate_on: [aerial-land, glyph-kinds]\n    shots:"))
