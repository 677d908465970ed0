"""How a worker ended, read from what Ray says of it; and in words for the record."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from orchestrator.core.events import Resources
from orchestrator.util.errors import one_line

_DIED = ("The actor died unexpectedly", "The actor died because")
_VMSTAT = Path("/proc/vmstat")


def cannot_start(said: str) -> bool:
    """Whether no worker can start at all."""
    return "raised in its creation task" in said


def lost_its_node(said: str) -> bool:
    """Whether a worker was lost because its machine was, or could not be reached."""
    return worker_died(said) and ("node has died" in said or "is unavailable:" in said)


def ran_out_of_memory(said: str, kernel_killed: bool) -> bool:
    """Whether a worker was ended for want of main memory: by Ray, or, as far as that can be told, by the kernel.

    Args:
        said: by Ray.
        kernel_killed: whether the kernel of this machine has just ended a process for that reason. It does not say
            to Ray which, and of other machines it is not known.
    """
    if "low on memory" in said or "OutOfMemoryError" in said.partition("\n")[0]:
        return True
    return kernel_killed and worker_died(said)


def kernel_kills() -> int:
    """How many processes the kernel of this machine has ended for want of memory since it was started."""
    with suppress(OSError, ValueError):
        for line in _VMSTAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def why(said: str) -> str:
    """One line for a failure that reached Tune: what a runner raised, or how a worker died."""
    lines = [line for line in said.splitlines() if line.strip()]
    if worker_died(said) and not cannot_start(said):
        told = [line for line in lines if not line.startswith("\t")]
        return one_line("the worker process died: " + " ".join(told[1:] or told))
    return one_line(lines[-1] if lines else "unknown")  # a remote traceback ends with what was raised


def over_limit(limit: str) -> str:
    """The record of a cell that did not end."""
    return (
        f"ran for more than the limit of {limit} and its worker was ended; if it needs longer, give a larger "
        "--cell-limit (0 for none) and --retry-failed"
    )


def advice(problem: str, error: str, first: Resources, last: Resources) -> str:
    """The record of a cell that ran out of memory, with what it had and what can be done."""
    if problem == "gpu_memory":
        tried = f"with {first.gpus:g} of a GPU, and again with a whole one" if first != last else _gpus(last)
        return f"{error} ({tried}; it needs a GPU with more memory, a smaller batch or a smaller backbone)"
    tried = "beside others, and again alone on a node" if first != last else "alone on a node"
    return f"out of main memory {tried}: {error} (it needs a machine with more memory, or a smaller batch)"


def _gpus(request: Resources) -> str:
    return f"with {request.gpus:g} GPUs" if request.gpus != 1 else "with a whole GPU"


def worker_died(said: str) -> bool:
    """Whether it was the worker that ended, and nothing that a method raised."""
    return said.startswith(_DIED) or (said.startswith("The actor ") and "is unavailable:" in said.partition("\n")[0])
