"""Run the command line: in a process of its own, as users do, or in this one."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from typer.testing import CliRunner

from tests.helpers.image_folders import write_image_folders
from tests.helpers.waiting import TIMEOUT, wait_for
from tests.helpers.warm_process import forked, kill_forked_when, run_forked

GRID = """
title: Mini
description: Three small datasets, five methods, one shot.
fine_tuning: {epochs: 2, batch_size: 8, learning_rate: 5.0e-4, warmup_steps: 1}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    domains: [own]
    sources: leave_one_out
    shots: [1]
    seeds: [1, 2]
    methods: [zero_shot, {linear_probe: {epochs: 2}}, tip_adapter, bolt_pooled, {bolt: {epochs: 2}}]
"""


def options(folder: Path, store: str = "") -> list[str]:
    """Return the options for a store, by default ``folder/runs``, and for the catalog and the images in ``folder``.

    Writes the catalog and the images if they do not exist.
    """
    return ["--store", store or str(folder / "runs"), *write_image_folders(folder)]


def arguments(folder: Path, *more: str, store: str = "") -> list[str]:
    """Return the ``grid`` command on the mini grid, with the images and, by default, the store in ``folder``."""
    grid = folder / "mini.yaml"
    if not grid.exists():
        grid.write_text(GRID)
    return [sys.executable, "-m", "orchestrator", "grid", str(grid), *options(folder, store), *more]


def run_local(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the ``grid`` command on the mini grid to its end, in one process without Ray."""
    return run_forked([*arguments(folder)[3:], "--local", *more])


def kill_local_when(folder: Path, reached: Callable[[], bool]) -> bool:
    """Start the ``grid`` command on the mini grid in one process without Ray, and kill it when ``reached`` is true.

    Returns ``False`` if the command ended before.
    """
    return kill_forked_when([*arguments(folder)[3:], "--local"], reached)


def run(command: list[str], timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def orchestrator(*words: str, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run the command line with these arguments to its end, in a process that has done the slow imports."""
    return run_forked(words, timeout=timeout)


def invoke(*words: object) -> str:
    """Run the command line in this process; return what it printed. Raises what it raises, unless it succeeds."""
    from orchestrator.cli.app import app

    ended = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def signal_when(
    command: list[str], reached: Callable[[], bool], log: Path, number: signal.Signals, timeout: float = TIMEOUT
) -> int | None:
    """Start a command line and send its process a signal when ``reached`` returns true.

    Returns the exit code; ``None`` if the process ended before. Writes the output to ``log``, and prints it, so that
    pytest shows it when a test fails.
    """
    with forked(command[3:], log=log) as process:
        wait_for(lambda: process.exitcode is not None or reached(), timeout)
        if process.exitcode is not None:
            return None
        psutil.Process(process.pid).send_signal(number)
        process.join(timeout)
        print(log.read_text(errors="replace"))
        return process.exitcode


def scores(store: Path) -> dict[str, object]:
    """Return, by cell id, the evaluations, curves, details and parameters of each result, without times."""
    found: dict[str, object] = {}
    for path in sorted((store / "results").glob("*.json")):
        data = json.loads(path.read_text())
        found[data["id"]] = (data["evaluations"], data["curves"], data["details"], data["trainable_parameters"])
    return found
