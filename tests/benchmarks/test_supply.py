"""The benchmark of the supply with images meets its goals, and counts what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.warm_process import run_forked, run_script

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "supply.py"


def test_the_device_path_copies_next_to_nothing_and_gives_equal_bits() -> None:
    done = run_script(SCRIPT, ["--grid", "smoke", "--rounds", "1", "--images", "4"])
    assert done.returncode == 0, done.stdout + done.stderr
    copied = next(line for line in done.stdout.splitlines() if line.startswith("  old path 4,816,896, new path "))
    assert 0 < int(copied.split()[5].replace(",", "")) < 10_000
    equal = next(line for line in done.stdout.splitlines() if line.startswith("equal bits")).split()
    assert equal[5] == equal[7]
    assert int(equal[5]) >= 18  # both families, and at least sixteen drawn datasets


def test_views_are_counted_once_for_all_cells_that_see_them() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from supply import evaluation_views, training_views\n"
        "from orchestrator.catalog import load_catalog\n"
        "from orchestrator.grid import load_grid\n"
        "catalog = load_catalog()\n"
        "only = ('method=bolt,lora', 'dataset=glyph-digits', 'track=fewshot', 'seed=1')\n"
        "cells = load_grid('demo', catalog, only=only).cells\n"
        "print(*training_views(cells, catalog), *training_views(cells[:1] * 3, catalog))\n"
        "print(*evaluation_views(cells, catalog))\n"
    )
    done = run_forked([str(SCRIPT.parent)], code)
    assert done.returncode == 0, done.stderr
    computed, distinct, thrice, once, asked, plain, made = map(int, done.stdout.split())
    assert computed > 2 * distinct > 0  # two methods at several k see the same views
    assert thrice == 3 * once > 0
    assert asked > plain == made > 0
