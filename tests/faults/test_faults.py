"""The most important faults, on one cluster of three nodes; ``soak.py`` injects random ones by the hundred."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bolt.seeds import numpy_generator
from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.report.grid_report import source_rows
from orchestrator.store import Store
from tests.conftest import GiveDatabase
from tests.faults import soak
from tests.faults.conftest import SECONDS
from tests.faults.faults import FAULTS, can_inject
from tests.helpers.grid_run import SMALL_GRID, SMALL_GRID_CELLS, GridRun
from tests.helpers.ray_nodes import MultiNodeCluster, alive, short_cluster
from tests.helpers.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiNodeCluster]:
    with short_cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def inject(grid_run: GridRun, name: str, rng: np.random.Generator) -> str:
    """Wait until a fault can be injected, and inject it; return its target."""
    fault, targets = FAULTS[name], list[str]()

    def injected() -> bool:
        if grid_run.cluster.head_is_up:  # Ray may have ended a node on a busy machine; the grid would wait for another
            grid_run.cluster.restart_dead_nodes()
        if fault.when == "idle" or can_inject(grid_run, fault.when):
            target = fault.inject(grid_run, rng)  # None if the target has just finished
            targets.extend([] if target is None else [target])
        return bool(targets) or not (fault.when == "idle" or grid_run.running)

    until(injected, SECONDS, 0.1)
    assert targets, f"{name} could not be injected: {grid_run.driver.output() if grid_run.driver else grid_run.ends}"
    return targets[0]


def test_a_grid_is_finished_with_the_right_results_after_many_faults(
    tmp_path: Path, cluster: MultiNodeCluster, expected: dict[str, object], give_database: GiveDatabase
) -> None:
    rng = numpy_generator("faults in the suite")
    grid_run = GridRun(tmp_path / "faults", cluster, grid=SMALL_GRID, cells=SMALL_GRID_CELLS)
    give_database(grid_run.store / "mlflow" / "mlflow.db")
    try:
        driver = grid_run.start()
        targets = [inject(grid_run, name, rng) for name in ("kill_builder", "kill_raylet", "kill_cell_worker")]
        assert until(lambda: grid_run.result_count() >= 4, SECONDS)
        assert driver.alive, driver.output()
        targets.append(inject(grid_run, "kill_driver", rng))
        assert not alive(driver.pid)
        assert grid_run.wait_until_idle()
        for damage in ("truncate_result", "swap_result", "flip_bytes", "cut_manifest", "half_written_attempt"):
            targets.append(inject(grid_run, damage, rng))
        targets.append(inject(grid_run, "stale_lease", rng))
        assert grid_run.repeat_until_done(repeats=2, seconds=SECONDS) <= 2
        assert soak.check_round(grid_run, expected, targets) == []
    finally:
        grid_run.close()


def test_the_report_leaves_out_a_source_model_whose_manifest_is_damaged(tmp_path: Path, reference: GridRun) -> None:
    """The plan reads only what open cells need, so the report of a finished grid is the first to read the manifest."""
    shutil.copytree(reference.store, tmp_path / "store")
    store, catalog = Store(tmp_path / "store"), load_catalog()
    plan = make_plan(load_grid(reference.grid_file, catalog), catalog, store)
    whole = source_rows(plan, store)
    assert plan.todo == ()
    manifest = next((tmp_path / "store" / "sources").glob("*glyph-inks*/manifest.json"))
    os.truncate(manifest, manifest.stat().st_size // 2)
    assert source_rows(plan, store) == [row for row in whole if row.dataset != "glyph-inks"]
    assert len(whole) == 2
