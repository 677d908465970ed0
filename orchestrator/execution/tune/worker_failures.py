"""How a worker ended, read from Ray's error text, and the error messages made of it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from orchestrator.core.events import Resources
from orchestrator.util.errors import one_line

_DIED = ("The actor died unexpectedly", "The actor died because")


def cannot_start(text: str) -> bool:
    """Whether the worker failed in its constructor, so that no worker can start at all."""
    return "raised in its creation task" in text


def worker_died(text: str) -> bool:
    """Whether the worker's process ended or could not be reached; false for an exception that it raised."""
    return text.startswith(_DIED) or (text.startswith("The actor ") and "is unavailable:" in text.partition("\n")[0])


def node_lost(text: str) -> bool:
    """Whether a worker was lost because its node died or could not be reached."""
    return worker_died(text) and ("node has died" in text or "is unavailable:" in text)


def out_of_memory(text: str, kernel_killed: bool) -> bool:
    """Whether a worker was killed because main memory ran out: by Ray or, as far as can be known, by the kernel.

    ``kernel_killed`` says whether this machine's kernel has just killed a process for lack of memory. Ray does not
    learn which one, and nothing is known of other machines.
    """
    by_ray = "low on memory" in text or "OutOfMemoryError" in text.partition("\n")[0]
    return by_ray or (kernel_killed and worker_died(text))


def oom_kill_count() -> int:
    """How many processes this machine's kernel has killed for lack of memory since the machine was started."""
    with suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def failure_line(text: str) -> str:
    """One line for a failure that Tune reports: the exception of the runner, or how its worker died."""
    lines = [line for line in text.splitlines() if line.strip()]
    if worker_died(text) and not cannot_start(text):
        report = [line for line in lines if not line.startswith("\t")]
        return one_line("the worker process died: " + " ".join(report[1:] or report))
    return one_line(lines[-1] if lines else "unknown")  # a remote traceback ends with the exception


def memory_message(kind: str, error: str, first: Resources, last: Resources) -> str:
    """Return the error of a cell that ran out of memory (``gpu_memory`` or ``main_memory``), with what can be done.

    ``first`` and ``last`` are what the cell had at its first and at its last attempt.
    """
    if kind == "gpu_memory":
        whole = f"with {last.gpus:g} GPUs" if last.gpus != 1 else "with a whole GPU"
        tried = f"with {first.gpus:g} of a GPU, and again with a whole one" if first != last else whole
        return f"{error} ({tried}; it needs a GPU with more memory, a smaller batch or a smaller backbone)"
    tried = "beside others, and again alone on a node" if first != last else "alone on a node"
    return f"out of main memory {tried}: {error} (it needs a machine with more memory, or a smaller batch)"
