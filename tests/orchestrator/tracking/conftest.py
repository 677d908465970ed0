"""Fixtures: a SQLite tracking store, and a tracker on it."""

from pathlib import Path

import pytest

from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.tracker import Tracker
from tests.conftest import GiveDatabase
from tests.orchestrator.tracking.examples import GRID


@pytest.fixture
def sqlite_store(give_database: GiveDatabase, tmp_path: Path) -> tuple[str, str]:
    """Tracking URI and artifact URL of a store of the test's own."""
    database = tmp_path / "mlflow" / "mlflow.db"
    give_database(database)
    return f"sqlite:///{database}", (tmp_path / "mlflow" / "artifacts").as_uri()


@pytest.fixture
def tracker(sqlite_store: tuple[str, str]) -> Tracker:
    return Tracker(TrackingLocation(*sqlite_store), GRID)
