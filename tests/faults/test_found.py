"""What the soak has found, each with a test of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.plan import make_plan
from orchestrator.session import source_rows
from orchestrator.store import Store
from tests.faults.world import World


def test_a_cut_manifest_of_a_source_that_no_open_cell_needs_is_no_end_of_the_report(
    tmp_path: Path, reference: World
) -> None:
    """The plan looks at what open cells need; of a finished grid, the report was the first to read it, and fell."""
    shutil.copytree(reference.store, tmp_path / "store")
    store, catalog = Store(tmp_path / "store"), load_catalog()
    plan = make_plan(load_grid(reference.grid_file, catalog), catalog, store)
    whole = source_rows(plan, catalog, store, None)
    assert plan.todo == ()
    manifest = next((tmp_path / "store" / "sources").glob("*glyph-inks*/manifest.json"))
    os.truncate(manifest, manifest.stat().st_size // 2)
    assert source_rows(plan, catalog, store, None) == [row for row in whole if row.dataset != "glyph-inks"]
    assert len(whole) == 2
