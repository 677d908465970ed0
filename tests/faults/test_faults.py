"""The most telling faults, on one cluster of three nodes; ``soak.py`` draws them by the hundred."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.report.grid_report import source_rows
from orchestrator.store import Store
from tests.conftest import GiveDatabase
from tests.faults import soak
from tests.faults.conftest import SECONDS
from tests.faults.faults import FAULTS, ready
from tests.helpers import misbehaving
from tests.helpers.grid_run import FEW_CELLS, FEW_CELLS_COUNT, World, scores
from tests.helpers.ray_nodes import MultiNodeCluster, alive
from tests.helpers.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiNodeCluster]:
    folder = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))  # sockets lie in it, and pytest's own paths are too long
    try:
        with MultiNodeCluster(folder) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def strike(world: World, name: str, rng: np.random.Generator) -> str:
    """Wait for a fault's moment and have it strike; every fault sees for itself that it was effective."""
    fault, hits = FAULTS[name], list[str]()

    def struck() -> bool:
        if fault.needs == "rest" or ready(world, fault.needs):
            hit = fault.strike(world, rng)  # nothing, where what was at work has just finished
            hits.extend([] if hit is None else [hit])
        return bool(hits)

    assert until(struck, SECONDS), f"{name} could not strike: {world.ends}"
    return hits[0]


def test_one_grid_through_one_fault_after_the_other(
    tmp_path: Path, cluster: MultiNodeCluster, expected: dict[str, object], rng: np.random.Generator
) -> None:
    world = World(tmp_path / "hurt", cluster, grid=FEW_CELLS, cells=FEW_CELLS_COUNT)
    try:
        driver = world.start()
        hits = [strike(world, name, rng) for name in ("kill_builder", "kill_raylet", "kill_cell_worker")]
        assert until(lambda: len(scores(world.store)) >= 4, SECONDS)
        assert driver.alive, driver.said()

        hits.append(strike(world, "kill_driver", rng))
        assert not alive(driver.pid)
        assert world.at_rest()
        for damage in ("truncate_result", "swap_result", "flip_bytes", "cut_manifest", "half_written_attempt"):
            hits.append(strike(world, damage, rng))
        hits.append(strike(world, "stale_lock", rng))

        assert world.finish(repeats=2, seconds=SECONDS) <= 2
        assert soak.judge(world, expected, hits) == []
    finally:
        world.close()


# -- what the soak has found, each with a test of its own ------------------------------------------------------------


def test_a_cut_manifest_of_a_source_that_no_open_cell_needs_is_no_end_of_the_report(
    tmp_path: Path, reference: World
) -> None:
    """The plan looks at what open cells need; of a finished grid, the report was the first to read it, and fell."""
    shutil.copytree(reference.store, tmp_path / "store")
    store, catalog = Store(tmp_path / "store"), load_catalog()
    plan = make_plan(load_grid(reference.grid_file, catalog), catalog, store)
    whole = source_rows(plan, catalog, store)
    assert plan.todo == ()
    manifest = next((tmp_path / "store" / "sources").glob("*glyph-inks*/manifest.json"))
    os.truncate(manifest, manifest.stat().st_size // 2)
    assert source_rows(plan, catalog, store) == [row for row in whole if row.dataset != "glyph-inks"]
    assert len(whole) == 2


# -- methods -----------------------------------------------------------------------------------------------------------

MISBEHAVING = """
title: Misbehaving methods
description: One that raises, one that gives NaN, one that hangs, one that eats memory, among proper cells.
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits]
    sources: leave_one_out
    shots: [1]
    seeds: [1]
    methods:
      - zero_shot
      - linear_probe: {epochs: 2}
      - misbehaving: {how: raises, as: raises}
      - misbehaving: {how: nan, as: nan}
      - misbehaving: {how: hangs, as: hangs}
      - misbehaving: {how: eats, as: eats}
"""
WORDS = {"raises": "made to fail", "nan": "NonFiniteLogits", "hangs": "limit", "eats": "memory"}


def test_methods_that_misbehave_fail_alone_and_say_why(
    tmp_path: Path, cluster: MultiNodeCluster, give_database: GiveDatabase
) -> None:
    world = World(
        tmp_path / "odd",
        cluster,
        grid=MISBEHAVING,
        cells=6,
        module="tests.helpers.misbehaving",
        options=("--cell-limit", "45s"),
        variables=misbehaving.HOOK,
    )
    give_database(world.store / "mlflow" / "mlflow.db")
    try:
        world.start()
        ended = world.collect(SECONDS)
        assert ended.code == 1, ended.said
        assert "Traceback" not in ended.said
        assert len(scores(world.store)) == 2
        said = [failure.error for failure in Store(world.store).read_failures().values()]
        assert len(said) == 4, said
        for word in WORDS.values():
            assert any(word in line for line in said), f"no failure says {word!r}: {said}"
    finally:
        world.close()
