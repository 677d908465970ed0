"""Finding a finished cell, and its rivals: the other methods on the same images, support and backbone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bolt.protocol import PUBLISHED
from orchestrator.analysis.rows import labels_of
from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.grid.labels import method_labels
from orchestrator.models.find_result import find_result
from orchestrator.models.inspection import find_rivals
from orchestrator.store import Store
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers.small_results import cell, result
from tests.helpers.synthetic_results import drawn


def test_errors_name_the_nearest_ids_or_the_failure(tmp_path: Path) -> None:
    catalog, store = load_catalog(), Store(tmp_path)
    grid = load_grid("smoke", catalog)
    *finished, failed = grid.cells
    for one in finished:
        store.write_result(drawn(one, grid.label(one), catalog))
    store.write_failure(Failure(failed.id, "ValueError: no", "", "", 1, "2026-01-01T00:00:00+00:00"))
    assert find_result(store, finished[0].id[:-3]).cell == finished[0]
    with pytest.raises(UserError) as caught:
        find_result(store, finished[0].id.replace("--", "--0"))
    assert repr(finished[0].id) in str(caught.value)
    with pytest.raises(UserError, match="`cells GRID` lists"):
        find_result(store, "nonsense")
    with pytest.raises(UserError, match="ValueError: no"):
        find_result(store, failed.id)


def test_rivals_share_everything_but_the_method(tmp_path: Path) -> None:
    own = result(cell("bolt", "ants", 4, 1), 70.0)
    rivals = [
        result(cell("lora", "ants", 4, 1), 75.0),
        result(cell("bolt", "ants", 4, 1, settings=(("top_k", 3),)), 65.0),
        result(cell("zero_shot", "ants"), 50.0),
    ]
    changes: list[dict[str, Any]] = [
        {"dataset": "bees"}, {"k": 16}, {"seed": 2}, {"track": "meta"}, {"protocol": PUBLISHED}, {"backbone": "large"},
        {"evaluate_on": ("bees",)}, {"domain": "other"},
    ]  # fmt: skip
    others = [cell("lora", **{"dataset": "ants", "k": 4, "seed": 1, **change}) for change in changes]
    store = Store(tmp_path)
    for one in (own, *rivals, *(result(other, 60.0) for other in others)):
        store.write_result(one)
    assert [rival.cell for rival in find_rivals(own, store)] == [rival.cell for rival in rivals]
    assert find_rivals(rivals[2], store) == []  # every cell with a support is in another place
    store.files.write(f"results/{rivals[0].cell.id}.json", b"{")
    assert [rival.cell for rival in find_rivals(own, store)] == [rival.cell for rival in rivals[1:]], "one is damaged"


def test_cells_of_one_method_are_labelled_by_what_differs() -> None:
    three, five = (cell("bolt", k=4, seed=1, settings=(("alpha", 1.0), ("top_k", k))) for k in (3, 5))
    other = replace(three, sources_rule="leave_group_out")
    cells = [three, five, other, cell("lora")]
    labels = method_labels(one.method for one in cells)
    found = labels_of(cells, lambda one: labels[one.method])
    assert found[five.id] == "bolt[top_k=5]"
    assert found[cell("lora").id] == "lora"
    assert len(set(found.values())) == 4


def test_a_result_of_an_earlier_version_may_lack_a_setting() -> None:
    """The store may hold results of both versions for one place."""
    older, newer = (cell("bolt", settings=settings).method for settings in ((), (("basis", "polar"),)))
    for methods in ([older, newer], [newer, older]):
        assert method_labels(methods) == {older: "bolt", newer: "bolt[basis=polar]"}
