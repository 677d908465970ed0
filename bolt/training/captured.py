"""The forward and backward pass of a training step as a CUDA graph: one launch instead of 400 to 2,000.

A small tower's step can take longer to launch its operations than to compute them. A CUDA graph records the operations
of one step with their addresses, and repeats them in one launch. So a step must run the same operations on the same
tensors every time, and its inputs must lie where those of the captured step lay:

- :class:`bolt.training.trainable.Losses` reads images and labels on the host first. What follows runs on the GPU only.
- Every shape of inputs has a graph of its own: the full batch, and the smaller last one of an epoch.
- Clipping and optimiser stay outside: 10 operations of 628 in a BOLT step at ViT-B. So the learning rate can remain a
  number, and a step over several batches adds the gradients of its graphs.

A step draws no random numbers: views and orders are drawn on the host before. A step with dropout is not captured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bolt.freed_memory import return_freed_memory
from bolt.training.trainable import Losses, Trainable

WARM_UPS = 2
"""Steps of each shape that are launched operator by operator first, so that libraries have allocated what they need."""

LONG_FORWARD = 0.5
"""Seconds of a forward pass from which on freed memory is returned before the backward pass. With ViT-B/32, whose
forward pass takes 2.6 seconds on one core, that takes 10 to 40 milliseconds."""

Gradient = Callable[[int, Tensor, float], Tensor]
"""``gradient(epoch, rows, share)`` adds the gradient of ``share`` times the mean loss of these rows to the parameters'
``grad``, and returns the loss."""


class Recorder(Protocol):
    """Records the operations of a function, so that they can be repeated without Python."""

    def launch(self, work: Callable[[], Tensor]) -> Tensor:
        """Run a function without recording it."""

    def record(self, work: Callable[[], Tensor]) -> Callable[[], None]:
        """Record a function; returns what repeats its operations. Whether they also run while recorded is open."""


class CudaGraphs:
    """Records CUDA graphs on a stream of their own. They share their memory, because only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def launch(self, work: Callable[[], Tensor]) -> Tensor:
        """Run a function on the stream of the graphs: autograd remembers the stream on which it met a parameter."""
        around = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(around)
        with torch.cuda.stream(self._stream):
            result = work()
        around.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], Tensor]) -> Callable[[], None]:
        """Record a function as a CUDA graph. Other threads may use the GPU meanwhile: they read images ahead."""
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.device(self._device), recording:
            work()
        return graph.replay


@dataclass(frozen=True)
class _Captured:
    """A captured step. ``inputs``, ``loss`` and ``gradients`` are the tensors that ``replay`` reads and writes."""

    inputs: Sequence[Tensor]
    loss: Tensor
    gradients: Sequence[Tensor | None]
    replay: Callable[[], None]


class CapturedGradient:
    """The gradient of a training's loss; steps are captured by a recorder, and then replayed.

    Gives the same gradients as :func:`launched_gradient`: the same operations run in the same order.
    """

    def __init__(self, losses: Losses, trainable: Trainable, recorder: Recorder) -> None:
        self._losses, self._trainable, self._recorder = losses, trainable, recorder
        self._launched: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, _Captured] = {}

    def __call__(self, epoch: int, rows: Tensor, share: float) -> Tensor:
        """See ``Gradient``."""
        inputs = self._losses.inputs(epoch, rows)
        kind = share, tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if kind not in self._captured:
            self._launched[kind] += 1
            if self._launched[kind] <= WARM_UPS:
                return self._recorder.launch(lambda: _backward(self._losses.of_inputs(*inputs), share))
            self._captured[kind] = self._capture(inputs, share)
        return self._replay(self._captured[kind], inputs)

    def _capture(self, given: Sequence[Tensor], share: float) -> _Captured:
        parameters = self._trainable.parameters
        before = [tensor.grad for tensor in parameters]
        for tensor in parameters:
            tensor.grad = None  # so that the graph writes a gradient of its own, and does not add to one
        inputs = [tensor.clone() for tensor in given]
        losses: list[Tensor] = []

        def work() -> Tensor:
            losses.append(_backward(self._losses.of_inputs(*inputs), share))
            return losses[-1]

        self._trainable.invalidate()
        replay = self._recorder.record(work)
        gradients = [tensor.grad for tensor in parameters]
        for tensor, gradient in zip(parameters, before, strict=True):
            tensor.grad = gradient
        return _Captured(inputs, losses[0], gradients, replay)

    def _replay(self, step: _Captured, given: Sequence[Tensor]) -> Tensor:
        parameters = self._trainable.parameters
        # Of an earlier batch of the same step, perhaps in the tensor that is written to now.
        before = [None if tensor.grad is None else tensor.grad.clone() for tensor in parameters]
        for tensor, value in zip(step.inputs, given, strict=True):
            tensor.copy_(value)
        step.replay()
        self._trainable.invalidate()
        for tensor, gradient, earlier in zip(parameters, step.gradients, before, strict=True):
            if gradient is not None:
                tensor.grad = gradient if earlier is None else earlier.add_(gradient)
        return step.loss.clone()


def launched_gradient(loss_of_rows: Callable[[int, Tensor], Tensor]) -> Gradient:
    """The gradient of a loss, launched operator by operator."""

    def gradient(epoch: int, rows: Tensor, share: float) -> Tensor:
        begun = time.perf_counter()
        loss = loss_of_rows(epoch, rows)
        if loss.device.type == "cpu" and time.perf_counter() - begun > LONG_FORWARD:
            return_freed_memory()  # 0.15 to 0.2 GiB with ViT-B/32, at the moment when most is in use
        return _backward(loss, share)

    return gradient


def captured_gradient(losses: Losses, trainable: Trainable, device: torch.device) -> Gradient | None:
    """The gradient with captured steps; ``None`` where steps cannot be captured: without a GPU, or with dropout."""
    if device.type != "cuda" or not trainable.capturable:
        return None
    return CapturedGradient(losses, trainable, CudaGraphs(device))


def _backward(loss: Tensor, share: float) -> Tensor:
    (share * loss).backward()  # type: ignore[no-untyped-call]
    return loss.detach()
