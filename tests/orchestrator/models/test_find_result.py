"""Finding a finished cell: its id, a prefix, the nearest ids of an unknown one, and a cell that failed."""

from pathlib import Path

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.models.find_result import find_result, nearest_ids
from orchestrator.store import Store
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers.synthetic_results import drawn

IDS = [
    f"fewshot.vit-b-32.{dataset}.k{k}.{method}.s{seed}--{dataset}{k}{seed}"
    for dataset in ("pets", "cars", "sun397")
    for k in (1, 16)
    for method in ("bolt", "lora", "linear_probe")
    for seed in (1, 2)
]


@pytest.mark.parametrize(
    ("wanted", "beginnings"),
    [
        (
            "fewshot.vit-b-32.cars.k16.bolt.s9",
            ["fewshot.vit-b-32.cars.k16.bolt.s1", "fewshot.vit-b-32.cars.k16.bolt.s2"],
        ),
        ("fewshot.vit-b-32.crs.k16.lora.s2", ["fewshot.vit-b-32.cars.k16.lora.s2"]),
        ("k16 sun397 lora", ["fewshot.vit-b-32.sun397.k16.lora.s1", "fewshot.vit-b-32.sun397.k16.lora.s2"]),
        ("nonsense", []),
    ],
)
def test_the_three_nearest_ids(wanted: str, beginnings: list[str]) -> None:
    found = nearest_ids(wanted, IDS)
    assert len(found) == 3
    assert sorted(one.split("--")[0] for one in found[: len(beginnings)]) == beginnings


def test_errors_name_the_nearest_ids_or_the_failure(tmp_path: Path) -> None:
    catalog, store = load_catalog(), Store(tmp_path)
    grid = load_grid("smoke", catalog)
    *finished, failed = grid.cells
    for cell in finished:
        store.write_result(drawn(cell, grid.label(cell), catalog))
    store.write_failure(Failure(failed.id, "ValueError: no", "", "", 1, "2026-01-01T00:00:00+00:00"))
    assert find_result(store, finished[0].id[:-3]).cell == finished[0]
    with pytest.raises(UserError) as caught:
        find_result(store, "nonsense")
    assert sum(cell.id in str(caught.value) for cell in finished) == 3
    with pytest.raises(UserError, match="ValueError: no"):
        find_result(store, failed.id)
