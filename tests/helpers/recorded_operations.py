"""Stands for CUDA graphs on a CPU: records the operations that PyTorch dispatches, and repeats them without Python.

As in a CUDA graph, a repeated operation reads and writes the memory it had when it was recorded, and whatever Python
decided then stays decided. So a training that this gets wrong, a CUDA graph would get wrong too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def repeat(self) -> None:
        with torch._C._AutoDispatchBelowAutograd():  # the operations of the backward pass are recorded too
            for func, args, kwargs, recorded in self.operations:
                again = func(*args, **kwargs)
                for to, value in zip(tree_leaves(recorded), tree_leaves(again), strict=True):
                    if isinstance(to, Tensor) and to.untyped_storage().data_ptr() != value.untyped_storage().data_ptr():
                        to.copy_(value)  # an operation in place, or a view, has written there already


class RecordedOperations:
    """A :class:`bolt.training.captured.Recorder` for a CPU. Operations run while they are recorded, too.

    Attributes:
        recorded, repeated: how many functions it recorded, and how often they were repeated.
    """

    def __init__(self) -> None:
        self.recorded = self.repeated = 0

    def launch(self, work: Callable[[], Tensor]) -> Tensor:
        return work()

    def record(self, work: Callable[[], Tensor]) -> Callable[[], None]:
        self.recorded += 1
        recording = _Recording()
        with recording:
            work()

        def repeat() -> None:
            self.repeated += 1
            recording.repeat()

        return repeat
