"""Copies images to a GPU without making the host wait, and reads the next images meanwhile.

A copy from pageable memory blocks the host. A copy from pinned memory does not block it, so a thread can read the next
images at the same time. On a CPU nothing is copied, and no thread is started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

Job = TypeVar("Job")

_AHEAD = 2
"""Number of batches that are read before they are requested."""


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Move a tensor to a device. A copy to a GPU goes through pinned memory, and the host does not wait for it."""
    where = torch.device(device)
    if where.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(where, non_blocking=True)
    return tensor.to(where)


class ReadAhead(Generic[Job]):
    """Reads batches of images in a thread, in a known order, before they are requested.

    It is a context manager. At the end of the block, the batches that are still being read are dropped.

    Args:
        read: ``read(job)`` -> the images of a batch, on the host.
        jobs: the jobs in the order in which they will be requested. A job is taken from the iterable when its batch is
            read.
        device: the device to which the batches will be copied. For a GPU, batches are read ahead into pinned memory.
            For any other device, a batch is read when it is requested.
    """

    def __init__(self, read: Callable[[Job], Tensor], jobs: Iterable[Job], device: torch.device | str) -> None:
        self._read, self._jobs = read, iter(jobs)
        self._pool = ThreadPoolExecutor(1, "read-ahead") if torch.device(device).type == "cuda" else None
        self._waiting: deque[tuple[Job, Future[Tensor]]] = deque()
        self._fill()

    def __call__(self, job: Job) -> Tensor:
        """Return the images of a job, which are read now unless they were read ahead. Raises what ``read`` raises."""
        if not self._waiting or self._waiting[0][0] != job:
            return self._read(job)
        _, found = self._waiting.popleft()
        self._fill()
        return found.result()

    def __enter__(self) -> ReadAhead[Job]:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        if self._pool is not None:
            for job in islice(self._jobs, _AHEAD - len(self._waiting)):
                self._waiting.append((job, self._pool.submit(self._pinned, job)))

    def _pinned(self, job: Job) -> Tensor:
        images = self._read(job)
        return images.pin_memory() if torch.cuda.is_available() else images
