"""The benchmark of large grids at sixty cells, and what it makes of its numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import scale


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted() -> None:
    command = [sys.executable, scale.__file__, "--sizes", "60", "--parts", "plan", "resume"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["60"])
    measured = ("expand_s", "plan_s", "held", "tracked_ms", "replan_s", "resume_s", "peak_mib", "load")
    found = dict(zip(measured, map(float, row.split()[1:]), strict=True))
    assert found["resume_s"] > found["replan_s"]
    assert found["peak_mib"] > 100
    assert "trials held by Tune when 30 had ended" in done.stdout


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
