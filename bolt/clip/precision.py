"""The number format of a tower's matrix products: ``float32``, ``tf32`` or ``bfloat16``.

Weights, gradients, optimisers, text heads and losses are float32 in every format. ``tf32`` rounds the factors of
float32 products to 10 bits of mantissa, on NVIDIA GPUs since Ampere. ``bfloat16`` runs a tower under autocast. Without
a choice, such a GPU computes in TF32 and any other device in float32.

The context managers here change PyTorch's global switches for a GPU only, and put them back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from bolt.protocol import Precision

_AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16."""


class UnsupportedPrecision(ValueError):
    """The device cannot compute in the number format that was asked for."""


def used_precision(precision: Precision | None, device: torch.device | str) -> Precision:
    """Return the number format that a tower computes in on a device; ``None`` stands for the device's default."""
    if precision is not None:
        return precision
    return "tf32" if _has_tf32(torch.device(device)) else "float32"


def check_precision(precision: Precision | None, device: torch.device | str) -> None:
    """Raise ``UnsupportedPrecision`` if the device cannot compute in this number format."""
    where = torch.device(device)
    if precision == "tf32" and not _has_tf32(where):
        raise UnsupportedPrecision(
            f"{where} cannot compute in tf32, which NVIDIA GPUs have since Ampere; leave precision out, or take float32"
        )
    if precision == "bfloat16" and where.type == "cuda" and not _has_tf32(where):
        raise UnsupportedPrecision(
            f"{where} cannot compute in bfloat16, which NVIDIA GPUs have since Ampere; leave precision out"
        )


@lru_cache(maxsize=16)
def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE


def forward_pass(precision: Precision | None, device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a tower's forward pass computes in this number format."""
    used = used_precision(precision, device)
    if device.type != "cuda" and used != "bfloat16":
        return nullcontext()
    return _forward_pass(used, device)


@contextmanager
def _forward_pass(used: Precision, device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(_float32_products(used))
        if used == "bfloat16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield


@contextmanager
def training_step(precision: Precision | None, device: torch.device) -> Iterator[None]:
    """Compute the forward and backward pass of a training step, on a GPU with deterministic kernels.

    The backward pass runs outside of :func:`forward_pass`, so it needs the switch of float32 products too. The
    backward pass of attention adds in an order that changes from run to run unless deterministic algorithms are asked
    for; an operation that has none raises a ``RuntimeError``.
    """
    if device.type != "cuda":
        yield
        return
    with _float32_products(used_precision(precision, device)), _deterministic_kernels():
        yield


@contextmanager
def _float32_products(used: Precision) -> Iterator[None]:
    """Compute float32 products on a GPU in TF32 or, for ``float32``, without rounding their factors."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    if hasattr(cuda.matmul, "fp32_precision"):
        products, convolutions, switch = cuda.matmul, cudnn.conv, "fp32_precision"
        value: object = "ieee" if used == "float32" else "tf32"
    else:  # PyTorch before 2.9
        products, convolutions, switch = cuda.matmul, cudnn, "allow_tf32"
        value = used != "float32"
    before = getattr(products, switch), getattr(convolutions, switch)
    try:
        setattr(products, switch, value)
        setattr(convolutions, switch, value)
        yield
    finally:
        setattr(products, switch, before[0])
        setattr(convolutions, switch, before[1])


@contextmanager
def _deterministic_kernels() -> Iterator[None]:
    """Ask for deterministic algorithms. The environment variable that cuBLAS needs for it stays set."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    switches: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        switches.fill_uninitialized_memory = False  # filling every new tensor takes time, and no operation needs it
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=only_warn)
        switches.fill_uninitialized_memory = before[1]
