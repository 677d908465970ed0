"""A method that fails in a way that its setting chooses."""

import dataclasses
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bolt.methods import METHODS
from bolt.methods.base import register
from bolt.task.classifiers import Classifier
from bolt.task.task import Adapted, Task

HEADROOM = 200 * 2**20
"""Bytes that a worker can still allocate before the system refuses more."""


@dataclass(frozen=True)
class FaultySettings:
    """How the method fails.

    Attributes:
        fault: ``raises`` an error, returns ``nan`` logits, or ``uses_up_memory``.
    """

    fault: str = "raises"


class NanClassifier:
    """A classifier whose logits are all NaN."""

    def __init__(self, inner: Classifier) -> None:
        self._inner = inner

    def __call__(self, *inputs: Any) -> Tensor:
        """Return logits of the right shape, all NaN."""
        return torch.full_like(self._inner(*inputs), float("nan"))


def adapt(task: Task, settings: FaultySettings) -> Adapted:
    if settings.fault == "raises":
        raise RuntimeError("this method was made to fail")
    if settings.fault == "nan":
        zero_shot = METHODS["zero_shot"].adapt(task, None)
        assert isinstance(zero_shot.classify, Classifier)
        return dataclasses.replace(zero_shot, classify=NanClassifier(zero_shot.classify))
    _use_up_memory()
    raise AssertionError("memory did not run out")


def _use_up_memory() -> None:
    """Limit the address space of this process, then allocate memory until it runs out."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, before[1]))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(16 * 2**20))
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


def register_method() -> None:
    """Register the method in this process. Importing the module registers nothing: some tests check every method."""
    register(
        name="faulty",
        title="Faulty",
        paper="https://example.org",
        uses_support=False,
    )(adapt)
