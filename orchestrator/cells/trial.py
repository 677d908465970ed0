"""Runs one cell in this process and records its result or its failure."""

import sys
import time
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

from orchestrator.artifacts.required import cell_artifacts
from orchestrator.artifacts.spec import artifact_cache, clear_artifact_caches
from orchestrator.artifacts.spectra import stored_directions
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, FailureKind
from orchestrator.core.gpu_memory import RESERVED_MEMORY
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store
from orchestrator.store.errors import causes, is_store_error, retry_store, store_error
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from orchestrator.util.interrupt import raise_if_interrupted


def run_and_record(cell: Cell, settings: RunSettings) -> CellEvent:
    """Run a cell, and store its result or its failure; return an event with the outcome.

    An exception of the cell is described in the event and not raised. Two problems are only reported in the event, and
    not stored as a failure: an unusable store, and too little memory, since the cell may be started again with more.
    """
    started = time.perf_counter()
    store = Store(settings.store_url)

    def ended(kind: Literal["finished", "failed"], error: str = "", **more: Any) -> CellEvent:
        return CellEvent(cell, kind, seconds=time.perf_counter() - started, error=error, **more)

    def record_result() -> None:
        if adapter is not None:
            store.write_adapter(cell.id, adapter)
        store.write_result(result, measurement.predictions)

    try:
        try:
            from orchestrator.cells.measure import adapter_to_keep, measure
            from orchestrator.cells.memory import limit_gpu_memory

            loaded = artifact_cache(settings)
            limit_gpu_memory(loaded.device, settings.gpu_share)
            measurement = retry_store(store.files.is_local, lambda: measure(cell, loaded))
            result, adapter = measurement.result, adapter_to_keep(measurement, loaded)
        except Exception as error:  # a method may raise anything
            raise_if_interrupted()  # the error may be what native code has made of a KeyboardInterrupt
            line, trace = f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc()
            if problem := classify_error(error):
                line = store_error(error) if problem == "store" else line
                return ended("failed", line, problem=problem, traceback=trace, recorded=False)
            # If a file is missing, another cell may have discarded the damaged directions that this cell reads.
            retryable = _discard_damaged_inputs(cell, settings) or isinstance(error, FileNotFoundError)
            retry_store(store.files.is_local, lambda: record_failure(store, cell.id, line, trace, retryable=retryable))
            return ended("failed", line)
        retry_store(store.files.is_local, record_result)
    except (OSError, UserError) as unusable:
        trace = traceback.format_exc()
        return ended("failed", store_error(unusable), problem="store", traceback=trace, recorded=False)
    return ended("finished", gpu_mib=float(result.details.get(RESERVED_MEMORY, 0.0)))


def classify_error(error: BaseException) -> FailureKind:
    """Return the kind of problem behind an error of a cell, searching the chain of ``__cause__``; empty if unknown."""
    if is_store_error(error):
        return "store"
    if any(isinstance(cause, MemoryError) for cause in causes(error)):
        return "main_memory"
    return "gpu_memory" if any(_is_gpu_memory(cause) for cause in causes(error)) else ""


def _is_gpu_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # if PyTorch was never imported, this is no error of a GPU
    if torch is None or not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()  # cuBLAS and cuDNN raise a plain RuntimeError
    of_cuda = "out of memory" in message and ("cuda" in message or "cublas" in message)
    return of_cuda or isinstance(error, torch.OutOfMemoryError)


def _discard_damaged_inputs(cell: Cell, settings: RunSettings) -> bool:
    """Discard damaged artifacts that a cell reads; return whether an artifact is damaged or missing.

    If an artifact is damaged or missing, this process also drops all artifacts that it has loaded.
    """
    try:
        loaded = artifact_cache(settings)
        reads = cell_artifacts(cell, loaded.catalog)
        addresses = [*reads.addresses, *stored_directions(loaded.store, cell.backbone.name, reads.sources)]
    except Exception:  # the cell has failed with the same error, which the caller records
        return False
    if damaged := [address for address in addresses if not loaded.store.is_intact(address)]:
        clear_artifact_caches()
    return bool(damaged)


def record_failure(
    store: Store, failed_id: str, error: str, trace: str = "", attempts: int = 1, *, retryable: bool = False
) -> None:
    """Record that a cell or an artifact could not be made. The attempts of an earlier record are added to ``attempts``.

    ``retryable``: whether the same command tries to make it again, see :class:`~orchestrator.store.results.Failure`.
    """
    before = store.read_failure(failed_id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log = store.write_log(failed_id, trace or error)
    attempts += before.attempts if before else 0
    store.write_failure(Failure(failed_id, error, trace, log, attempts, now, retryable))
