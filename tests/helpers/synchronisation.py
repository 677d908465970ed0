"""Finds the operations that make a host wait for its GPU, by watching what PyTorch dispatches; no GPU is needed."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITING = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2")
_WITHOUT_A_DETERMINISTIC_KERNEL = frozenset({
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "_ctc_loss", "_embedding_bag",
    "avg_pool3d_backward", "bincount", "cumsum", "cumsum_", "fractional_max_pool2d_backward",
    "grid_sampler_2d_backward", "histc", "kthvalue", "max_pool3d_with_indices_backward", "max_unpool2d", "median",
    "nll_loss2d_backward", "nll_loss2d_forward", "put_", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "resize_", "scatter_reduce", "scatter_reduce_", "upsample_bicubic2d_backward", "upsample_bilinear2d_backward",
})  # fmt: skip
"""What PyTorch refuses on a GPU where deterministic algorithms are asked for."""
_READING = ("tolist", "numpy", "cpu", "item", "__bool__", "__int__", "__float__")


class Waits(TorchDispatchMode):
    """Notes which operations in training steps would make the host wait for a GPU, or would fail on a GPU.

    An operation without a deterministic kernel fails on a GPU.

    The tests have no GPU, so the mode assigns each tensor to the host or to the GPU. Floating-point tensors are on the
    GPU, and so are whole numbers that were copied or made there (``.to(device)``, ``device=...``), and the results of
    operations on any of these. Other whole numbers, such as the row numbers of a step, are on the host, and so are the
    results of ``.cpu()`` and of operations on tensors of the host alone.

    Attributes:
        found: what made the host wait in a step.
        in_step: whether a step is running; outside of one the host may wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.in_step = False
        self._whole: dict[int, Tensor] = {}
        self._read_back: dict[int, Tensor] = {}

    def __enter__(self) -> Self:
        self._calls = _Calls(self)
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._calls.__exit__(*error)

    def copied(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that counts as on the GPU; the tensor itself stays on the host."""
        there = tensor.view_as(tensor)
        self.add(there)
        return there

    def add(self, tensor: Tensor) -> None:
        """Note that a tensor is on the GPU."""
        self._read_back.pop(id(tensor), None)
        self._whole[id(tensor)] = tensor

    def holds(self, value: Any) -> bool:
        """Return whether a value is a tensor on the GPU."""
        if not isinstance(value, Tensor) or id(value) in self._read_back:
            return False
        return value.is_floating_point() or id(value) in self._whole

    def read_back(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that counts as on the host."""
        here = tensor.view_as(tensor)
        self._whole.pop(id(here), None)
        self._read_back[id(here)] = here
        return here

    def note(self, what: str) -> None:
        """Note something that makes the host wait."""
        if self.in_step:
            self.found.add(what)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        here = [one for one in given if self.holds(one)]
        if name in _WAITING and here:
            self.note(name)
        if name in _WITHOUT_A_DETERMINISTIC_KERNEL and here:
            self.note(f"{name}, which has no deterministic kernel")
        if name.startswith("index") and any(one.dtype == torch.bool for one in here if one is not args[0]):
            self.note(f"{name} by a mask")
        if here and any(one.ndim and not self.holds(one) for one in given):  # single numbers are handed over as such
            self.note(f"{name} of tensors of the host and of the device")
        result = func(*args, **kwargs)
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and here:
                self.add(one)
            elif isinstance(one, Tensor) and any(id(value) in self._read_back for value in given):
                self._read_back[id(one)] = one
        return result


class _Calls(TorchFunctionMode):
    """Sees what PyTorch does not dispatch on a CPU: copies to a device, new tensors there, and reads of values."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _READING and self._waits.holds(args[0]):
            self._waits.note(name)
        result = func(*args, **kwargs)
        if name == "cpu":
            return self._waits.read_back(result)
        if not isinstance(result, Tensor) or self._waits.holds(result):
            return result
        if name == "to" and any(isinstance(one, torch.device | str | Tensor) for one in (*args[1:], *kwargs.values())):
            self._waits.note("to")
            return self._waits.copied(result)
        if kwargs.get("device") is not None:
            if name == "tensor":
                self._waits.note("tensor")
            self._waits.add(result)
        return result
