"""The graph of build tasks and cells without Ray, and how failures of workers are told apart."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.events import CellEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.backend import run_cells_locally
from orchestrator.execution.task_graph import GraphTask, run_graph_locally
from orchestrator.execution.tune import worker
from tests.helpers import cells as samples


def give(value: int) -> int:
    return value


def refuse(value: int) -> int:
    raise ValueError(f"not {value}")


def task(value: int, *dependencies: str) -> GraphTask:
    return GraphTask(give, (value,), frozenset(dependencies))


def test_dependencies_run_first_and_other_tasks_in_order() -> None:
    tasks = {"c": task(3, "a"), "a": task(1), "b": task(2), "d": task(4, "c", "b")}
    events = [(event.key, event.kind) for event in run_graph_locally(tasks)]
    assert events == [(key, kind) for key in ("a", "c", "b", "d") for kind in ("started", "finished")]


def test_a_failure_skips_once_and_only_the_tasks_that_depend_on_it() -> None:
    a, b = (GraphTask(refuse, (number,)) for number in (1, 2))
    tasks = {"a": a, "b": b, "c": task(3, "a", "b"), "d": task(4, "c"), "e": task(5)}
    ends = [event for event in run_graph_locally(tasks) if event.kind != "started"]
    events = {event.key: event for event in ends}
    assert len(ends) == len(events)
    kinds = {"a": "failed", "b": "failed", "c": "skipped", "d": "skipped", "e": "finished"}
    assert {key: event.kind for key, event in events.items()} == kinds
    assert events["a"].error == "ValueError: not 1"
    assert "raise ValueError" in events["a"].traceback
    assert (events["c"].failed_dependency, events["d"].failed_dependency) == ("a", "a")


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_cycle_is_refused_before_anything_runs_and_an_interrupt_is_no_failure() -> None:
    with pytest.raises(ValueError, match="cycle"):
        next(run_graph_locally({"a": task(1, "b"), "b": task(2, "a")}))
    with pytest.raises(KeyboardInterrupt):
        list(run_graph_locally({"a": GraphTask(interrupt)}))


@given(st.data())
def test_every_task_ends_exactly_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    tasks, failing = {}, set()
    for number in range(count):
        needs = data.draw(st.sets(st.integers(0, number - 1))) if number else set()
        fails = data.draw(st.booleans())
        failing |= {str(number)} if fails else set()
        tasks[str(number)] = GraphTask(refuse if fails else give, (number,), frozenset(map(str, needs)))
    order = data.draw(st.permutations(list(tasks)))
    events = list(run_graph_locally({key: tasks[key] for key in order}))
    ends = {event.key: event.kind for event in events if event.kind != "started"}
    assert len(events) - sum(event.kind == "started" for event in events) == count
    for key, kind in ends.items():
        broken = any(ends[need] != "finished" for need in tasks[key].dependencies)
        assert kind == ("skipped" if broken else "failed" if key in failing else "finished")


DIED = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
KILLED = DIED + "Worker unexpectedly exits with a connection error code 2. End of file."
LOW_MEMORY = "Task was killed due to the node running low on memory.\nMemory on the node was 23 GB / 24 GB."
NODE_DIED = DIED + "The actor died because its node has died. Node Id: 0a"
UNREACHABLE = "The actor 0a is unavailable: rpc error. The task may or may not have been executed on the actor."
RAISED = 'Traceback:\n  File "x.py"\nValueError: the node has died, said a method'


def test_a_lost_node_is_told_from_a_dead_worker_and_from_an_exception() -> None:
    lost = [worker.node_lost(text) for text in (KILLED, NODE_DIED, UNREACHABLE, RAISED)]
    assert lost == [False, True, True, False]
    assert worker.failure_line(KILLED).startswith("the worker process died: Worker unexpectedly exits")
    assert worker.failure_line(RAISED) == "ValueError: the node has died, said a method"


def test_lack_of_memory_is_recognised_by_rays_text_or_by_the_kernels_count() -> None:
    found = {
        (text, killed): worker.failure(samples.cell(), text, kernel_killed=killed)
        for text in (KILLED, LOW_MEMORY, RAISED)
        for killed in (False, True)
    }
    assert {key for key, event in found.items() if event.problem == "main_memory"} == {
        (LOW_MEMORY, False), (LOW_MEMORY, True), (KILLED, True),
    }  # fmt: skip
    assert {key for key, event in found.items() if event.retryable} == {(KILLED, False)}
    assert worker.oom_kill_count() >= 0


def test_local_cells_report_the_same_events_as_on_ray(tmp_path: Path) -> None:
    cells = [samples.cell(number) for number in (0, 1, 2, 7, 99, 8)]
    events: list[CellEvent] = []
    run_cells_locally(cells, RunSettings(str(tmp_path)), on_event=events.append, runner=f"{samples.HERE}:misbehave")
    assert [event.cell.seed for event in events if event.kind == "started"] == [0, 1, 2, 7, 99, 8]
    last = {event.cell.seed: event for event in events}
    assert (last[1].error, last[1].recorded) == ("ValueError: one too many", True)
    assert (last[7].error, last[7].recorded) == ("OSError: no space left on device", False)
    assert last[99].error == "SystemExit: usage: as argparse says"
    assert last[8].kind == "finished"
