"""A small grid with every track and every method, and a store with its artifacts, built once per test process."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from bolt.methods import METHODS
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.grid import Grid, load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.helpers.quick_settings import quick_settings

DATASETS = ["glyph-inks", "glyph-digits", "aerial-roofs"]
"""A mirrorable dataset, one that is not mirrorable, and one of another domain."""
FINE_TUNING = {"epochs": 1, "batch_size": 32, "learning_rate": 5.0e-4, "warmup_steps": 5}
"""The recipe of the source models."""
TEST_TIME = {"epochs": 1, "batch_size": 100}
"""Settings at test time, where a method adapts to the whole test split."""


def tiny(name: str, track: str = "fewshot") -> Any:
    """A method's entry in a grid, with its test settings."""
    method = METHODS[name]
    settings = {key: list(v) if isinstance(v, tuple) else v for key, v in quick_settings(method.name).items()}
    if track.startswith("tta"):
        settings |= {key: value for key, value in TEST_TIME.items() if key in settings}
    return {name: settings}


def grid_text(protocol: Any = "strict", datasets: list[str] | None = None) -> str:
    blocks = []
    for track in ("fewshot", "tta", "tta_stream", "tta_image", "meta"):
        methods = [tiny(name, track) for name, method in METHODS.items() if track in method.tracks]
        block = {
            "track": track,
            "backbones": ["tiny-clip"],
            "datasets": (datasets or DATASETS[:1]) if track == "fewshot" else DATASETS[:1],
            "sources": {"rule": "leave_one_out", "datasets": DATASETS},
            "seeds": [1],
            "methods": methods,
        }
        blocks.append(block if track.startswith("tta") else {**block, "shots": [1, 2] if track == "fewshot" else [2]})
    return yaml.safe_dump({"title": "Small world", "protocol": protocol, "fine_tuning": FINE_TUNING, "blocks": blocks})


@dataclass(frozen=True)
class World:
    """A grid, and a store with all artifacts of its cells."""

    grid: Grid
    catalog: Catalog
    settings: RunSettings

    @cached_property
    def loaded(self) -> ArtifactCache:
        return ArtifactCache(self.settings)

    def pick(self, method: str, track: str = "fewshot", dataset: str = DATASETS[0], shots: int = 2) -> Cell:
        return next(
            cell
            for cell in self.grid.cells
            if (cell.method.name, cell.track, cell.dataset.name) == (method, track, dataset)
            and cell.shots in (shots, 0)
        )


def build_world(folder: Path, text: str, artifacts: BuiltArtifacts, *catalogs: Path) -> World:
    catalog = load_catalog(catalogs)
    path = folder / "world.yaml"
    path.write_text(text)
    grid = load_grid(path, catalog)
    settings = RunSettings(str(folder / "store"), device="cpu", catalog_files=tuple(map(str, catalogs)))
    artifacts.build(make_plan(grid, catalog, Store(settings.store_url)).missing, settings)
    return World(grid, catalog, settings)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    """The small world under the strict protocol."""
    return build_world(tmp_path_factory.mktemp("world"), grid_text(), artifacts)
