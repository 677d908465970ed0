"""Whose fault an error is: the cell's own, or something the cell cannot help and that another try may mend."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from orchestrator.store.remote import DISK_ERRORS, StoreUnavailable
from orchestrator.util.errors import UserError, one_line

Made = TypeVar("Made")

Problem = Literal["", "gpu_memory", "main_memory", "store"]
"""What stood in a cell's way: nothing but itself (empty), too little memory, or a store that takes nothing."""

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each further try of a remote store; the libraries below have tried several times by then."""


_CANNOT = "the store cannot be used"


class Unwritable(UserError):
    """The store cannot be used. What has finished is kept, and the same command goes on when it can be used again."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            why if why.startswith(_CANNOT) else f"{_CANNOT} ({why}), so the run was stopped",
            where=url,
            hint="what has finished is kept and nothing was put down as failed; mend that and run the same command",
        )


class StoreGone(Exception):
    """The reason alone, as a builder says it, why the store cannot be used; the driver makes ``Unwritable`` of it."""


def problem_of(error: BaseException) -> Problem:
    """What an error from the middle of a cell or a builder says, where that is not its own fault."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, StoreUnavailable) or (isinstance(chain, OSError) and chain.errno in DISK_ERRORS):
            return "store"
        if isinstance(chain, MemoryError):
            return "main_memory"
        if _is_gpu_memory(chain):
            return "gpu_memory"
        chain = chain.__cause__
    return ""


def _is_gpu_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # where it was not imported, it raised nothing
    if torch is None:
        return False
    if isinstance(error, torch.OutOfMemoryError):
        return True
    said = str(error).lower()  # libraries below torch say it in their own words
    return isinstance(error, RuntimeError) and "out of memory" in said and ("cuda" in said or "cublas" in said)


def patiently(store_is_local: bool, do: Callable[[], Made]) -> Made:
    """Do what reads or writes a store; a remote one that is away is tried again after each of :data:`PAUSES`."""
    for pause in () if store_is_local else PAUSES:
        try:
            return do()
        except StoreUnavailable as error:
            if not _may_pass(error):
                raise
        time.sleep(pause)
    return do()


def reason(error: BaseException) -> str:
    """Why nothing can be written, in one line."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in DISK_ERRORS:
            return DISK_ERRORS[chain.errno]
        chain = chain.__cause__
    return one_line(error.what if isinstance(error, UserError) else error)


def _may_pass(error: StoreUnavailable) -> bool:
    """Whether waiting may mend an error of a remote store; credentials and full disks stay as they are."""
    return error.errno not in DISK_ERRORS and not isinstance(error.__cause__, PermissionError)
