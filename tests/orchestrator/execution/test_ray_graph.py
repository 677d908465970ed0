"""Graphs of tasks on Ray: order, failures, and dead workers."""

import os
from pathlib import Path

import pytest

from orchestrator.core.events import Resources
from orchestrator.execution.task_graph import GraphTask, run_graph_on_ray
from orchestrator.util.errors import UserError

pytestmark = pytest.mark.ray


def append(path: str, word: str) -> None:
    with open(path, "a") as stream:
        stream.write(f"{word}\n")


def refuse() -> None:
    raise UserError("no", hint="never")


def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return os.getpid()


def test_a_graph_on_ray_keeps_order_retries_and_skips(cluster: Resources, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    tasks = {
        "images": GraphTask(append, (log, "images"), cpus=0.5),
        "features": GraphTask(append, (log, "features"), frozenset({"images"}), cpus=0.5),
        "broken": GraphTask(refuse, cpus=0.5),
        "blocked": GraphTask(append, (log, "blocked"), frozenset({"broken", "images"}), cpus=0.5),
        "dying": GraphTask(die_once, (str(tmp_path / "died"),), cpus=0.5),
        "dead": GraphTask(os._exit, (1,), cpus=0.5),
    }
    events = list(run_graph_on_ray(tasks))
    last = {event.key: event for event in events if event.kind != "started"}
    kinds = ("finished", "finished", "failed", "skipped", "finished", "failed")
    assert {key: event.kind for key, event in last.items()} == dict(zip(tasks, kinds, strict=True))
    assert "UserError: no" in last["broken"].error
    assert [last[name].retryable for name in ("broken", "blocked", "dead")] == [False, False, True]
    assert Path(log).read_text().split() == ["images", "features"]
