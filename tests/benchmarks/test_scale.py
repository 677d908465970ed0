"""The benchmark of large grids at a few cells, and what it makes of its numbers."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from benchmarks import scale
from tests.conftest import GiveDatabase

CELLS = 20


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted(
    tmp_path: Path, give_database: GiveDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is run in this process, and starts its two drivers."""
    give_database(tmp_path / "store" / "mlflow" / "mlflow.db")
    monkeypatch.setattr(scale, "scratch", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(sys, "argv", ["scale.py", "--sizes", str(CELLS), "--parts", "plan", "resume"])
    code, printed = scale.main(), capsys.readouterr().out
    assert code == 0, printed
    row = next(line for line in printed.splitlines() if line.split()[:1] == [str(CELLS)])
    measured = ("expand_s", "plan_s", "held", "tracked_ms", "replan_s", "resume_s", "peak_mib", "load")
    found = dict(zip(measured, map(float, row.split()[1:]), strict=True))
    assert found["resume_s"] > found["replan_s"]
    assert found["peak_mib"] > 100
    assert f"trials held by Tune when {CELLS // 2} had ended" in printed


def test_a_goal_is_judged_at_its_own_size_and_growth_per_cell() -> None:
    small = {"plan_s": 1.0, "fanout_ms": 8.0, "held": 2.0}
    checks = dict(scale.compare_with_goals({1000: small, 10_000: {"plan_s": 6.0, "fanout_ms": 9.0, "held": 2.0}}))
    assert checks == {
        "6.0 s to expand and plan at 10,000 cells, goal 5": False,
        "9.0 ms a cell for Tune and the store at 10,000 cells, goal 15": True,
        "2 trials held by Tune when 5,000 had ended, goal 20": True,
        "plan takes 0.60 times as long per cell at 10,000 as at 1,000, goal 1.5": True,
        "fanout takes 1.12 times as long per cell at 10,000 as at 1,000, goal 1.5": True,
    }
    assert scale.compare_with_goals({1000: {**small, "held": 500.0}}) == [
        ("500 trials held by Tune when 500 had ended, goal 20", False)
    ]


def test_ratios_are_told_of_what_was_measured() -> None:
    assert scale.ratios({"fanout_ms": 8.0, "pool_ms": 4.0, "tracked_ms": 30.0}) == [
        "fanout is 2.00 times the 4.0 ms of an ActorPool that writes the same results"
    ]
