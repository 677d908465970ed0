"""How long commands take before they do any work, beside a bare Python and ``import torch`` in the same rounds.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 9

Every line is the median over the rounds, in seconds, each command in a process of its own. The processor time stands
beside the clock's: on a machine that does other work, only that can be compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

COMMANDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "--help": ["-m", "orchestrator", "--help"],
    "status": ["-m", "orchestrator", "status"],
    "data list": ["-m", "orchestrator", "data", "list"],
    "sources list": ["-m", "orchestrator", "sources", "list"],
    "plan smoke": ["-m", "orchestrator", "plan", "smoke"],
    "plan full": ["-m", "orchestrator", "plan", "full"],
}

GOALS = {"--help": 0.4, "status": 1.0, "data list": 1.0, "sources list": 1.0, "plan full": 4.0}
"""Seconds on two idle cores."""

PLAN_GOAL = 0.5
"""``plan smoke`` may take so many seconds more than ``import torch``."""


def measure(arguments: list[str], store: str) -> tuple[float, float]:
    """Wall-clock and processor seconds of one process."""
    before, begun = os.times(), time.perf_counter()
    environment = {**os.environ, "BOLT_STORE": store}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - begun, used


def main() -> None:
    """Measure every command in turn, round by round, and print the medians and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as store:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                found[name].append(measure(command, store))
    print(f"{'':14}{'seconds':>9}{'processor':>11}{'goal':>8}")
    walls = {name: statistics.median(wall for wall, _ in times) for name, times in found.items()}
    goals = {**GOALS, "plan smoke": walls["import torch"] + PLAN_GOAL}
    for name, times in found.items():
        goal = f"{goals[name]:.2f}" if name in goals else ""
        print(f"{name:14}{walls[name]:9.2f}{statistics.median(used for _, used in times):11.2f}{goal:>8}")


if __name__ == "__main__":
    main()
