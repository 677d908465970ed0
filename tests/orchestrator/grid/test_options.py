"""``--only``, ``--set`` and the limit: what they select and change, and how mistakes are reported."""

from collections.abc import Callable
from typing import Any

import pytest

from bolt.protocol import PUBLISHED
from orchestrator.core.cell import Cell
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid, cell_keys, labels


def test_only_keeps_what_matches(load: LoadGrid) -> None:
    grid = load(only=["method=trained", "k=4", "dataset=one,two", "seed=2"])
    assert cell_keys(grid) == [("trained", "one", 4, 2), ("trained", "two", 4, 2)]
    assert cell_keys(load(only=["method=trained", "shots=1", "label=trained", "dataset=one", "seed=1"])) == [
        ("trained", "one", 1, 1)
    ]
    for option in ("track=fewshot", "backbone=tiny-clip", "domain=little", "protocol=strict"):
        assert load(only=[option]).cells == load().cells


def test_methods_without_k_or_seed_stay_a_repeated_key_widens_and_limit_keeps_the_first(load: LoadGrid) -> None:
    assert {key[0] for key in cell_keys(load(only=["k=4", "seed=1"]))} == {"plain", "trained"}
    assert {key[0] for key in cell_keys(load(only=["k=0"]))} == {"plain"}
    assert {key[0] for key in cell_keys(load(only=["method=plain", "method=trained"]))} == {"plain", "trained"}
    assert load(limit=3).cells == load().cells[:3]
    assert load(limit=10**6).cells == load().cells


def test_a_filter_narrows_the_sources_and_keeps_the_labels(load: LoadGrid) -> None:
    text = GRID + "      - trained: {rate: 1}\n"
    grid = load(text, only=["label=trained[rate=1]", "dataset=one"])
    assert labels(grid) == {"trained[rate=1]"}
    several = text + "      - trained: {rate: 2, mode: fast}\n"
    label = "trained[mode=fast,rate=2]"
    assert labels(load(several, only=[f"label={label}", "label=plain"])) == {label, "plain"}
    assert {ref.dataset for ref in grid.sources} == {"two", "three", "four"}
    assert load(text, only=["method=plain"]).sources == {}


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
def test_set_overrides(load: LoadGrid, options: list[str], check: Callable[[Cell], bool]) -> None:
    grid = load(set_=options)
    assert all(check(cell) for cell in grid.cells)
    assert grid.cells != load().cells


@pytest.mark.parametrize(
    ("options", "where", "facts"),
    [
        ({"only": ["method=boltt"]}, "--only method=boltt", ("'boltt'", "known: plain, trained")),
        ({"only": ["method=traned"]}, "--only method=traned", ("'traned'", "'trained'")),
        ({"only": ["methd=plain"]}, "--only methd=plain", ("'methd'", "'method'")),
        ({"only": ["method"]}, "--only method", ("key=value,value",)),
        ({"only": ["method="]}, "--only method=", ("key=value,value",)),
        ({"only": ["k=3"]}, "--only k=3", ("'3'", "0, 1, 4")),
        ({"only": ["k=0", "method=trained"]}, "--only k=0 --only method=trained", ("no cell",)),
        ({"set_": ["shots"]}, "--set shots", ("key=value",)),
        ({"set_": ["fine_tuning.epochs="]}, "--set fine_tuning.epochs=", ("key=value",)),
        ({"set_": ["shot=[1]"]}, "--set shot=[1]", ("'shot'", "'shots'")),
        ({"set_": ["shots=[0]"]}, "--set: shots[0]", ("greater than or equal to 1",)),
        ({"set_": ["shots=[x]"]}, "--set: shots[0]", ("'x'", "integer")),
        ({"set_": ["shots=[1"]}, "--set shots=[1", ("not valid YAML",)),
        ({"set_": ["traned.rate=1"]}, "--set traned.rate=1", ("'traned'", "'trained'")),
        ({"set_": ["trained.rat=1"]}, "--set: trained", ("'rat'", "'rate'")),
        ({"set_": ["trained.rate=-1"]}, "--set: trained", ("rate", "-1")),
        ({"set_": ["unlabelled.rate=1"]}, "--set: unlabelled", ("'unlabelled'",)),
        ({"set_": ["protocol=strick"]}, "--set: protocol", ("'strick'", "'strict'")),
        ({"set_": ["protocol.sigma=relu"]}, "--set: protocol", ("'sigma'", "'sigma_sign'")),
        ({"set_": ["fine_tuning.epoch=1"]}, "--set: fine_tuning", ("'epoch'", "'epochs'")),
        ({"set_": ["track=tba"]}, "--set: track", ("'tba'", "'tta'")),
        ({"set_": ["evaluate_on=[one]"]}, "--set: evaluate_on", ("no block",)),
        ({"set_": ["datasets=[one]", "domains=[little]"]}, "--set", ("either datasets or domains",)),
        ({"set_": ["fine_tuning.epochs=1", "methods=[plain]"]}, "--set: fine_tuning", ("no method",)),
        ({"set_": ["datasets=[oen]"]}, "--set: datasets[0]", ("'oen'", "'one'")),
        ({"limit": 0}, "--limit", ("0",)),
    ],
)
def test_a_wrong_option_is_named(load: LoadGrid, options: dict[str, Any], where: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        load(**options)
    assert caught.value.where == where
    message = f"{caught.value.what} {caught.value.hint}"
    assert [fact for fact in facts if fact not in message] == []
