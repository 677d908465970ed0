"""What the ``plan`` command says of inputs that are missing."""

import io
from pathlib import Path

from rich.console import Console

from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.planning.plan_view import plan_view
from orchestrator.store import Store

GRID = """
title: Two datasets
blocks:
  - {track: fewshot, backbones: [tiny-clip], datasets: [dtd, eurosat], shots: [1], seeds: [1], methods: [linear_probe]}
"""


def test_a_plan_names_the_command_that_fetches_what_is_missing(tmp_path: Path) -> None:
    """It once sent the reader to another command, with a name that this command did not know."""
    (tmp_path / "mine.yaml").write_text(GRID)
    catalog, store = load_catalog(), Store(tmp_path / "runs")
    plan = make_plan(load_grid(tmp_path / "mine.yaml", catalog), catalog, store)
    shown = io.StringIO()
    Console(width=200, file=shown).print(plan_view(plan, store))
    assert "data prepare dtd eurosat --data-root" in shown.getvalue()
    assert "doctor" not in shown.getvalue()
