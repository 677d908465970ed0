"""Fixtures for grids: a small catalog, methods that adapt nothing, and a loader of grid texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bolt.methods import METHODS
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.grid import Grid, load_grid
from tests.helpers.small_grid import CATALOG, GRID, STUB_METHODS, LoadGrid


@pytest.fixture(scope="module", autouse=True)
def stub_methods() -> Iterator[None]:
    """Register the stub methods beside the real ones."""
    for method in STUB_METHODS:
        METHODS.register(method)
    yield
    for method in STUB_METHODS:
        del METHODS[method.name]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The project's catalog and the small one."""
    path = tmp_path_factory.mktemp("catalog") / "little.yaml"
    path.write_text(CATALOG, encoding="utf-8")
    return load_catalog([path])


@pytest.fixture
def load(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadGrid:
    """Load a grid from its text, from the file ``g.yaml`` in the current folder."""
    monkeypatch.chdir(tmp_path)

    def from_text(text: str = GRID, **options: Any) -> Grid:
        Path("g.yaml").write_text(text, encoding="utf-8")
        return load_grid("g.yaml", catalog, **options)

    return from_text
