"""Finds the operations that make a host wait for its GPU, by watching what PyTorch dispatches; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2")


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITING or (name.startswith("index") and _has_mask(args)):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _has_mask(args: tuple[Any, ...]) -> bool:
    """Whether an index is a boolean mask, whose size only the device knows."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)


def synchronising_operations(run: Callable[[], object]) -> list[str]:
    """Names of the operations in ``run`` that read a value or a size back from the device."""
    with _Watch() as watch:
        run()
    return watch.found
