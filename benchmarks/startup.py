"""How long commands take before they do any work, beside a bare Python and ``import torch`` in the same rounds.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 9
    python benchmarks/startup.py --store runs --grid demo

Without ``--store``, the grid ``smoke`` is run into a new store first, which takes a minute. Each command runs in a
process of its own, once before the measured rounds. A line gives the shortest time over the rounds, in seconds, by the
clock and of the processor (user and system). The goals were set for two idle cores on which ``import torch`` takes 1.9
seconds. They are printed for this machine: multiplied by the measured ``import torch`` over 1.9. On a machine that does
other work the clock's time says nothing, and the processor's is too long by up to a half.

``--json FILE`` writes the processor times and the goals as a chart for docs/performance.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GOALS = {
    "--help": 0.4,
    "status": 1.0,
    "status GRID": 1.0,
    "data list": 1.0,
    "results GRID": 1.0,
    "sources list": 1.0,
    "plan full": 4.0,
}
"""Seconds on two idle cores on which ``import torch`` takes ``IMPORT_TORCH`` seconds."""

IMPORT_TORCH = 1.9

PLAN_GOAL = 0.5
"""``plan smoke`` may take so many seconds more than ``import torch``, where that takes ``IMPORT_TORCH`` seconds."""


@dataclass(frozen=True)
class Times:
    """Seconds of a process: by the clock, and of the processor."""

    clock: float
    processor: float


def commands(grid: str) -> dict[str, list[str]]:
    """The arguments of Python for each line of the table."""
    words = {
        "--help": ["--help"],
        "status": ["status"],
        "status GRID": ["status", grid],
        "data list": ["data", "list"],
        "results GRID": ["results", grid],
        "sources list": ["sources", "list"],
        "plan smoke": ["plan", "smoke"],
        "plan full": ["plan", "full"],
    }
    own = {name: ["-m", "orchestrator", *arguments] for name, arguments in words.items()}
    return {"python": ["-c", "pass"], "import torch": ["-c", "import torch"], **own}


def measure(arguments: list[str], environment: dict[str, str]) -> Times:
    """The time of one process. Raises ``CalledProcessError`` if it fails."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return Times(time.perf_counter() - begun, used)


def shortest(grid: str, rounds: int, environment: dict[str, str]) -> dict[str, Times]:
    """The shortest times of every command over the rounds, the commands in turn."""
    found: dict[str, list[Times]] = {name: [] for name in commands(grid)}
    for number in range(rounds + 1):
        for name, arguments in commands(grid).items():
            times = measure(arguments, environment)
            if number:  # round 0 fills the caches
                found[name].append(times)
    return {
        name: Times(min(one.clock for one in each), min(one.processor for one in each)) for name, each in found.items()
    }


def goals_here(import_torch: float) -> dict[str, float]:
    """The goals on a machine on which ``import torch`` takes so many seconds."""
    goals = {**GOALS, "plan smoke": IMPORT_TORCH + PLAN_GOAL}
    return {name: seconds * import_torch / IMPORT_TORCH for name, seconds in goals.items()}


def chart(found: dict[str, Times], goals: dict[str, float]) -> dict[str, object]:
    """The processor times of the commands that have a goal, as a chart of docs/performance.json."""
    rows = [
        {"label": name, "runs": [round(found[name].processor, 2)], "goal": round(goal, 2)}
        for name, goal in goals.items()
    ]
    return {
        "name": "startup",
        "title": "Starting a command",
        "unit": "processor seconds",
        "better": "less",
        "rows": rows,
    }


def main() -> None:
    """Measure every command in turn, round by round, and print the shortest times and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path, help="a store in which the grid has been run")
    parser.add_argument("--grid", default="smoke")
    parser.add_argument("--json", type=Path, help="file for the chart")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or Path(folder, "runs")
        environment = {**os.environ, "BOLT_STORE": str(store), "BOLT_CACHE": str(Path(folder, "cache"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's second start does not compile the project again
        if options.store is None:
            measure(["-m", "orchestrator", "grid", options.grid, "--local"], environment)
        found = shortest(options.grid, options.rounds, environment)
    goals = goals_here(found["import torch"].processor)
    print(f"{'':14}{'seconds':>9}{'processor':>11}{'goal':>8}")
    for name, times in found.items():
        goal = f"{goals[name]:.2f}" if name in goals else ""
        print(f"{name:14}{times.clock:9.2f}{times.processor:11.2f}{goal:>8}")
    if options.json is not None:
        options.json.write_text(json.dumps(chart(found, goals), indent=2) + "\n")


if __name__ == "__main__":
    main()
