"""A method that misbehaves, for grids of tests alone.

It is known to a command started by ``python -m tests.helpers.misbehaving`` and, through Ray's own hooks, to the workers
of that command; nothing of ``bolt.methods`` is touched.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bolt.methods import METHODS
from bolt.methods.base import Method, register
from bolt.task.classifiers import Classifier
from bolt.task.task import Adapted, Task

HOOK = {"RAY_RUNTIME_ENV_HOOK": "tests.helpers.misbehaving.in_every_worker"}
"""Environment of the command, which makes Ray register the method in its workers."""

HEADROOM = 200 * 2**20
"""Bytes that a worker which eats memory may still take before the system refuses it more."""


@dataclass(frozen=True)
class MisbehavingSettings:
    """How it misbehaves.

    Attributes:
        how: ``raises``, ``nan``, ``hangs`` or ``eats`` memory.
    """

    how: str = "raises"


class NotNumbers:
    """A classifier whose logits are no numbers, whatever it is given."""

    def __init__(self, inner: Classifier) -> None:
        self._inner = inner

    def __call__(self, *inputs: Any) -> Tensor:
        """Logits of the right shape, all of them NaN."""
        return torch.full_like(self._inner(*inputs), float("nan"))


def adapt(task: Task, settings: MisbehavingSettings) -> Adapted:
    """Misbehave."""
    if settings.how == "raises":
        raise RuntimeError("this method was made to fail")
    if settings.how == "nan":
        proper = METHODS["zero_shot"].adapt(task, None)
        assert isinstance(proper.classify, Classifier)
        return dataclasses.replace(proper, classify=NotNumbers(proper.classify))
    if settings.how == "hangs":
        time.sleep(24 * 3600)
    _eat()
    raise AssertionError("there was no end of memory")


def _eat() -> None:
    """Take memory until there is none: the address space of this process is limited for it, not the machine's."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, before[1]))
    eaten = []
    try:
        while True:
            eaten.append(bytearray(16 * 2**20))
    finally:
        eaten.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


def in_every_worker(environment: dict[str, Any] | None) -> dict[str, Any]:
    """Ray's hook: the runtime environment of a driver, with the method known in its workers."""
    return {**(environment or {}), "worker_process_setup_hook": "tests.helpers.misbehaving.known"}


def known() -> None:
    """Register the method in this process. Importing this module does not: the suite looks at every method there is."""
    register(
        Method(
            name="misbehaving",
            title="Misbehaving",
            paper="https://example.org",
            settings_class=MisbehavingSettings,
            adapt=adapt,
            uses_support=False,
        )
    )


if __name__ == "__main__":
    from orchestrator.__main__ import main

    known()
    main()
