"""The number format of a tower's matrix products: ``float32``, ``tf32`` or ``bfloat16``.

Weights, gradients, optimisers, text heads and losses are float32 in every format. ``tf32`` rounds the factors of
float32 products to 10 bits of mantissa; NVIDIA GPUs have it since Ampere. ``bfloat16`` runs a tower under autocast. By
default, a GPU that has TF32 computes in TF32, and any other device in float32.

The context managers of this module set PyTorch's global switches back at the end of the block.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, cast, get_args

import torch

from bolt.protocol import Precision

_AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16."""


class UnsupportedPrecision(ValueError):
    """The device cannot compute in the requested number format."""


def used_precision(precision: Precision | None, device: torch.device | str) -> Precision:
    """Return ``precision``, or the default number format of the device for ``None``."""
    if precision is not None:
        return precision
    return "tf32" if _has_tf32(torch.device(device)) else "float32"


def check_precision(precision: Precision | None, device: torch.device | str) -> None:
    """Raise ``UnsupportedPrecision`` if the number format is unknown, or if the device cannot compute in it."""
    where = torch.device(device)
    if precision is not None and precision not in get_args(Precision):
        raise UnsupportedPrecision(f"a number format is {', '.join(get_args(Precision))}, not {precision!r}")
    needs_ampere = precision == "tf32" or (precision == "bfloat16" and where.type == "cuda")
    if needs_ampere and not _has_tf32(where):
        raise UnsupportedPrecision(
            f"{where} cannot compute in {precision}: a CUDA GPU with compute capability 8.0 (Ampere) or higher can; "
            "leave precision out, or take float32"
        )


@lru_cache(maxsize=16)
def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE


@contextmanager
def plain_torch() -> Iterator[None]:
    """Run a block, or a function that this decorates, with some of PyTorch's settings as in a new process.

    In the block, gradients are recorded, autocast is off, and new tensors are float32 and on the CPU. Products of
    float32 matrices, and convolutions on the CPU, do not round their factors to TF32 or bfloat16. A caller may have
    changed these settings, and results must not depend on them. The caller's values are set back at the end. Most
    of the settings belong to the process: if two threads are in such blocks, the first thread that leaves its block
    sets the values back for both threads.
    """
    number_format, mkldnn = torch.get_default_dtype(), cast(Any, torch.backends.mkldnn)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if number_format != torch.float32:
            stack.callback(torch.set_default_dtype, number_format)
            torch.set_default_dtype(torch.float32)
        for products in (torch.backends.cuda.matmul, mkldnn.matmul, mkldnn.conv):
            if products.fp32_precision not in ("ieee", "none"):
                stack.callback(setattr, products, "fp32_precision", _own_format(products))
                products.fp32_precision = "ieee"
        yield


def _own_format(products: Any) -> str:
    """Return the number format that one kind of product has of its own, or ``none``. The kind is set to ``none``.

    A kind without a format of its own uses that of its group, such as cuDNN's, and PyTorch then shows the group's
    format as the kind's. So the kind is set to ``none`` here: if PyTorch then shows another format, the kind had its
    own. The caller must set the result back, ``none`` too, so that the kind uses its group's format again.
    """
    used: str = products.fp32_precision
    products.fp32_precision = "none"
    return "none" if products.fp32_precision == used else used


@contextmanager
def forward_pass(precision: Precision | None, device: torch.device) -> Iterator[None]:
    """Compute a tower's forward pass in this number format inside the ``with`` block."""
    used = used_precision(precision, device)
    products = _float32_products(used) if device.type == "cuda" else nullcontext()
    autocast = torch.autocast(device.type, torch.bfloat16) if used == "bfloat16" else nullcontext()
    with products, autocast:
        yield


@contextmanager
def training_step(precision: Precision | None, device: torch.device) -> Iterator[None]:
    """Compute the forward and backward pass of a training step in the ``with`` block, with the same bits every time.

    On a GPU, the block sets PyTorch's number format for float32 products. :func:`forward_pass` sets it too, but for the
    forward pass only. The block also requests deterministic algorithms. Without them, the backward pass of attention
    adds in an order that changes from run to run. An operation that has no deterministic algorithm raises a
    ``RuntimeError``.
    """
    if device.type != "cuda":
        yield
        return
    with _float32_products(used_precision(precision, device)), _deterministic_kernels():
        yield


@contextmanager
def _float32_products(used: Precision) -> Iterator[None]:
    """Set how a GPU multiplies float32 numbers in the ``with`` block.

    If ``used`` is ``float32``, the factors are not rounded. Otherwise they are rounded to TF32.
    """
    cudnn: Any = torch.backends.cudnn
    products, convolutions = torch.backends.cuda.matmul, cudnn.conv
    before = _own_format(products), _own_format(convolutions)
    try:
        products.fp32_precision = convolutions.fp32_precision = "ieee" if used == "float32" else "tf32"
        yield
    finally:
        products.fp32_precision, convolutions.fp32_precision = before


@contextmanager
def _deterministic_kernels() -> Iterator[None]:
    """Request deterministic algorithms inside the ``with`` block.

    The environment variable that cuBLAS needs for this stays set after the block.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    switches: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        # PyTorch would fill every new tensor. That takes time, and no operation needs it.
        switches.fill_uninitialized_memory = False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=only_warn)
        switches.fill_uninitialized_memory = before[1]
