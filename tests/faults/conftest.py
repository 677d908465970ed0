"""A grid of few cells, and what it comes to when nothing goes wrong."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from bolt.seeds import numpy_generator
from tests.conftest import GiveDatabase
from tests.helpers.grid_run import FEW_CELLS, FEW_CELLS_COUNT, World, scores
from tests.helpers.ray_nodes import MultiNodeCluster

SECONDS = 900.0
"""Longer than anything here takes on a busy machine."""


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> World:
    """A run without faults, in one process and without Ray, at its end."""
    folder = tmp_path_factory.mktemp("reference")
    world = World(folder, MultiNodeCluster(folder / "none", workers=0), grid=FEW_CELLS, cells=FEW_CELLS_COUNT)
    give_database(world.store / "mlflow" / "mlflow.db")
    command = world.command("--local")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=world.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return world


@pytest.fixture(scope="session")
def expected(reference: World) -> dict[str, object]:
    """The scores of the run without faults."""
    found = scores(reference.store)
    assert len(found) == FEW_CELLS_COUNT
    return found


@pytest.fixture
def rng() -> np.random.Generator:
    return numpy_generator("faults in the suite")
