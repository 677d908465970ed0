"""A grid of thirteen cells on the tiny CLIP, and stores in which some of them have been measured."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from orchestrator.cells.trial import run_and_record
from orchestrator.core.cell import Cell
from orchestrator.store import Store
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import DATASETS, World, build_world, tiny

METHODS = ("zero_shot", "linear_probe", "tip_adapter", "task_res")


def _text() -> str:
    block = {
        "track": "fewshot", "backbones": ["tiny-clip"], "datasets": DATASETS[:1], "shots": [1, 2], "seeds": [1, 2],
        "methods": [tiny(name) for name in METHODS],
    }  # fmt: skip
    return yaml.safe_dump({"title": "Shared cells", "blocks": [block]})


@dataclass(frozen=True)
class Stores:
    """Makes stores in which cells of one grid are measured."""

    world: World

    @property
    def grid_file(self) -> Path:
        return Path(self.world.settings.store_url).parent / "world.yaml"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.world.grid.cells

    def measure(self, folder: Path, cells: Iterable[Cell]) -> Store:
        """A new store in ``folder`` with the grid's artifacts, in which ``cells`` have been measured."""
        shutil.copytree(self.world.settings.store_url, folder, ignore=shutil.ignore_patterns("results", "adapters"))
        for cell in cells:
            outcome = run_and_record(cell, replace(self.world.settings, store_url=str(folder)))
            assert outcome.kind == "finished", outcome
        return Store(folder)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> Stores:
    """The grid and its artifacts, built once."""
    return Stores(build_world(tmp_path_factory.mktemp("shared"), _text(), artifacts))


@pytest.fixture(scope="session")
def whole(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store in which every cell of the grid has been measured; do not change it."""
    return stores.measure(tmp_path_factory.mktemp("whole") / "runs", stores.cells)


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Store, str], Store]:
    def copy(store: Store, name: str) -> Store:
        for kind in ("results", "adapters", "failures", "logs"):
            source = Path(store.url, kind)
            if source.is_dir():
                shutil.copytree(source, tmp_path / name / kind)
        return Store(tmp_path / name)

    return copy
