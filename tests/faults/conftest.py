"""A small grid, and its results in a run without faults."""

import pytest
import torch

from orchestrator.catalog import load_catalog
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from tests.conftest import GiveDatabase
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.helpers.grid_run import SMALL_GRID, SMALL_GRID_CELLS, GridRun, scores
from tests.helpers.ray_nodes import MultiNodeCluster
from tests.helpers.warm_process import run_forked

SECONDS = 900.0
"""Longer than any command here takes on a busy machine."""


@pytest.fixture(scope="session")
def reference(
    tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts, give_database: GiveDatabase
) -> GridRun:
    """A finished run without faults, in one process and without Ray."""
    folder = tmp_path_factory.mktemp("reference")
    grid_run = GridRun(folder, MultiNodeCluster(folder / "none", workers=0), grid=SMALL_GRID, cells=SMALL_GRID_CELLS)
    give_database(grid_run.store / "mlflow" / "mlflow.db")
    if not torch.cuda.is_available():  # a model that a GPU has trained has other bits
        catalog, store = load_catalog(), Store(grid_run.store)
        missing = make_plan(load_grid(grid_run.grid_file, catalog), catalog, store).missing
        artifacts.build(missing, RunSettings(store.url, device="cpu"))
    done = run_forked(grid_run.command("--local")[3:], environment=grid_run.environment, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return grid_run


@pytest.fixture(scope="session")
def expected(reference: GridRun) -> dict[str, object]:
    """The scores of the run without faults."""
    found = scores(reference.store)
    assert len(found) == SMALL_GRID_CELLS
    return found
