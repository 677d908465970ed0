"""Tell a cell's own failure from one of the machine or the store, and retry a store that is away."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from orchestrator.store.remote import DISK_ERRORS, StoreUnavailable
from orchestrator.util.errors import UserError, one_line

T = TypeVar("T")

FailureKind = Literal["", "gpu_memory", "main_memory", "store"]
"""What caused a failure: the cell itself (empty), too little memory, or a store that cannot be used."""

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each new attempt on a remote store. The store's client library has retried several times by then."""

_PREFIX = "the store cannot be used"


class RunStopped(UserError):
    """The store cannot be used, so the run was stopped. Finished cells are kept; the same command continues."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            reason if reason.startswith(_PREFIX) else f"{_PREFIX} ({reason}), so the run was stopped",
            where=url,
            hint="what has finished is kept and nothing was recorded as failed; repair the store and run the same "
            "command again",
        )


def classify_error(error: BaseException) -> FailureKind:
    """The cause of an error that a cell or a builder raised; the errors it was raised from count as well."""
    for cause in _causes(error):
        if isinstance(cause, StoreUnavailable) or (isinstance(cause, OSError) and cause.errno in DISK_ERRORS):
            return "store"
        if isinstance(cause, MemoryError):
            return "main_memory"
        if _is_gpu_memory(cause):
            return "gpu_memory"
    return ""


def store_error(error: BaseException) -> str:
    """Why the store cannot be used, in one line."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return DISK_ERRORS[cause.errno]
    return one_line(error.what if isinstance(error, UserError) else error)


def retry_store(store_is_local: bool, action: Callable[[], T]) -> T:
    """Call ``action``. While a remote store is unavailable, call it again after each of :data:`PAUSES`.

    A full disk or refused credentials are not retried. A local store is never retried.
    """
    for pause in () if store_is_local else PAUSES:
        try:
            return action()
        except StoreUnavailable as error:
            if error.errno in DISK_ERRORS or isinstance(error.__cause__, PermissionError):
                raise
            time.sleep(pause)
    return action()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the error it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_gpu_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # a process that has not imported torch has no error of its
    if torch is None:
        return False
    if isinstance(error, torch.OutOfMemoryError):
        return True
    message = str(error).lower()  # cuBLAS and cuDNN raise a plain RuntimeError
    return isinstance(error, RuntimeError) and "out of memory" in message and ("cuda" in message or "cublas" in message)
