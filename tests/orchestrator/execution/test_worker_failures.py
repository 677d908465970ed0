"""How the end of a worker is read from Ray's error text."""

from orchestrator.execution.tune import worker
from tests.helpers import cells as samples

DIED = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
KILLED = DIED + "Worker unexpectedly exits with a connection error code 2. End of file."
LOW_MEMORY = "Task was killed due to the node running low on memory.\nMemory on the node was 23 GB / 24 GB."
NODE_DIED = DIED + "The actor died because its node has died. Node Id: 0a"
UNREACHABLE = "The actor 0a is unavailable: rpc error. The task may or may not have been executed on the actor."
RAISED = 'Traceback:\n  File "x.py"\nValueError: the node has died, said a method'


def test_a_lost_node_is_told_from_a_dead_worker_and_from_an_exception() -> None:
    lost = [worker.node_lost(text) for text in (KILLED, NODE_DIED, UNREACHABLE, RAISED)]
    assert lost == [False, True, True, False]


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


def test_the_failure_line_names_the_exception_or_how_the_worker_died() -> None:
    assert worker.failure_line(KILLED).startswith("the worker process died: Worker unexpectedly exits")
    assert worker.failure_line(RAISED) == "ValueError: the node has died, said a method"
