"""Run one cell in this process. Knows nothing of Ray.

Task -> ``method.run`` -> score -> result. The method sees a :class:`bolt.task.task.Task`, in which there are no test
labels; scoring happens afterwards (``evaluation.py``).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import RESERVED
from orchestrator.planning.packing import hold_to_share
from orchestrator.store import Store
from orchestrator.store.failure_kind import FailureKind, classify_error, retry_store, store_error
from orchestrator.store.results import Failure, Result, Timings
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from bolt.methods import Method
    from bolt.task.task import Adapted, Task
    from orchestrator.artifacts.loaded import LoadedArtifacts


KEPT_BYTES = 2**20
"""Adapters up to this size are kept in the store; a larger one is made again by running its cell once more."""


@dataclass(frozen=True)
class Outcome:
    """How one attempt at a cell ended; the result or the failure is in the store by then, unless there is a problem.

    Attributes:
        error: one line, empty when finished.
        problem: why nothing was recorded: another try can mend it, or the store takes nothing.
        traceback: the whole story, where nothing was recorded.
        gpu_mib: the most memory the process held of a GPU, as far as torch knows; 0 without one.
    """

    cell_id: str
    status: Literal["finished", "failed"]
    seconds: float
    error: str = ""
    problem: FailureKind = ""
    traceback: str = ""
    gpu_mib: float = 0.0


def run_and_record(cell: Cell, settings: RunSettings) -> Outcome:
    """Run a cell and write its result, or, when it fails, the failure with its traceback.

    Never raises for what the cell does. Too little memory and a store that takes nothing are told and not recorded:
    they say nothing about the cell.
    """
    started = time.perf_counter()
    store = Store(settings.store_url)

    def outcome(status: Literal["finished", "failed"], error: str = "", **more: Any) -> Outcome:
        return Outcome(cell.id, status, time.perf_counter() - started, error, **more)

    try:
        from orchestrator.artifacts.loaded import loaded_artifacts

        loaded = loaded_artifacts(settings)
        hold_to_share(loaded.device, settings.gpu_share)
        measured = retry_store(store.files.is_local, lambda: measure(cell, loaded))
        adapter = kept_adapter(measured, loaded)
    except Exception as error:  # whatever a method raises is that cell's failure, not the run's
        line, trace = f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc()
        if problem := classify_error(error):
            return outcome(
                "failed", store_error(error) if problem == "store" else line, problem=problem, traceback=trace
            )
        try:
            again = bool(damaged_inputs(cell, settings))
            retry_store(store.files.is_local, lambda: record_failure(store, cell.id, line, trace, again=again))
        except (OSError, UserError) as away:
            return outcome("failed", store_error(away), problem="store", traceback=trace)
        return outcome("failed", line)

    def record() -> None:
        if adapter is not None:
            store.write_adapter(cell.id, adapter)
        store.write_result(measured.result)

    try:
        retry_store(store.files.is_local, record)
    except (OSError, UserError) as away:
        return outcome("failed", store_error(away), problem="store", traceback=traceback.format_exc())
    return outcome("finished", gpu_mib=float(measured.result.details.get(RESERVED, 0.0)))


def damaged_inputs(cell: Cell, settings: RunSettings) -> list[str]:
    """Addresses of the artifacts a cell reads that are damaged or gone; they count as unbuilt from now on.

    This process then forgets what it has read. None for a cell of which that cannot be said, such as one whose catalog
    cannot be read.
    """
    from orchestrator.artifacts.loaded import loaded_artifacts

    try:
        loaded = loaded_artifacts(settings)
        addresses = loaded.addresses_read(cell)
    except Exception:  # what the cell itself has met, and what is on record for it
        return []
    damaged = [address for address in addresses if not loaded.store.is_intact(address)]
    if damaged:
        loaded_artifacts.cache_clear()
    return damaged


def record_failure(
    store: Store, failed_id: str, error: str, trace: str = "", attempts: int = 1, *, again: bool = False
) -> None:
    """Record that a cell or an artifact could not be made, after so many attempts, counting earlier ones.

    ``again``: the same command tries it again, see :class:`~orchestrator.store.results.Failure`.
    """
    before = store.read_failure(failed_id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log = store.write_log(failed_id, trace or error)
    store.write_failure(
        Failure(failed_id, error, trace, log, (before.attempts if before else 0) + attempts, now, again)
    )


@dataclass(frozen=True)
class Measured:
    """A finished cell: what it says, and what it made."""

    result: Result
    adapted: Adapted


def run_cell(cell: Cell, loaded: LoadedArtifacts) -> Result:
    """The result of one cell; see :func:`measure`."""
    return measure(cell, loaded).result


def measure(cell: Cell, loaded: LoadedArtifacts) -> Measured:
    """Measure one cell.

    Raises what the method raises, :class:`bolt.task.scoring.NonFiniteLogits` for logits that are not numbers,
    ``FileNotFoundError`` for an artifact that is not built, ``ValueError`` for details that are no numbers or texts.
    """
    from bolt.methods import METHODS
    from orchestrator.cells.evaluation import evaluate
    from orchestrator.cells.manifest import PeakMemory, make_manifest

    method = METHODS[cell.method.name]
    if method.version != cell.method.version:
        raise ValueError(f"the cell asks for version {cell.method.version} of {method.name}, this is {method.version}")
    settings = method.configure(cell.method.settings_dict(), cell.track)
    recorder = Recorder(cell, loaded)
    with PeakMemory(loaded.device) as memory:
        clock = [time.perf_counter()]
        task = make_task(cell, method, settings, loaded, recorder)
        clock.append(time.perf_counter())
        adapted = method.run(task, settings)
        clock.append(time.perf_counter())
        evaluations = tuple(evaluate(cell, dataset, adapted, loaded) for dataset in cell.evaluate_on)
        clock.append(time.perf_counter())
    prepare, fit, score = (after - before for before, after in pairwise(clock))
    result = Result(
        cell=cell,
        evaluations=evaluations,
        trainable_parameters=adapted.trainable_parameters,
        timings=Timings(prepare, fit - recorder.scoring_seconds, score + recorder.scoring_seconds),
        peak_memory_mib=memory.mebibytes,
        support_size=len(task.support),
        manifest=make_manifest(loaded, loaded.addresses_read(cell)),
        curves={name: tuple(values) for name, values in recorder.curves.items()},
        details={**adapted.details, **_short_classes(cell, task), **_reserved(memory.reserved_mebibytes)},
    )
    result.check()  # what a method made that cannot be written down is its cell's failure, not the store's
    return Measured(result, adapted)


def kept_adapter(measured: Measured, loaded: LoadedArtifacts) -> dict[str, bytes] | None:
    """The files of a cell's adapter, or ``None`` where it is larger than what is kept, or cannot be written down."""
    from bolt.model.saving import adapter_files
    from bolt.task.classifiers import Classifier
    from orchestrator.cells.model import model_of

    if not isinstance(measured.adapted.classify, Classifier):
        return None
    return adapter_files(model_of(measured.result, measured.adapted, loaded), KEPT_BYTES)


class Recorder:
    """What a cell tells while it trains: its curves and, on the ``meta`` track, its accuracy after every epoch."""

    def __init__(self, cell: Cell, loaded: LoadedArtifacts) -> None:
        self.curves: dict[str, list[float]] = {}
        self.scoring_seconds = 0.0
        self._cell, self._bench = cell, loaded

    def report(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Note an epoch's numbers."""
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(float(value))

    def after_epoch(self, epoch: int, make: Callable[[], Adapted]) -> None:
        """Score the classifier as it stands; the method learns nothing of it."""
        from orchestrator.cells.evaluation import evaluate

        if not TRACKS[self._cell.track].scored_after_epochs:
            return
        started = time.perf_counter()
        score = evaluate(self._cell, self._cell.dataset, make(), self._bench).accuracy
        self.report(epoch, {"accuracy": score})
        self.scoring_seconds += time.perf_counter() - started


def make_task(cell: Cell, method: Method, settings: Any, loaded: LoadedArtifacts, recorder: Recorder) -> Task:
    """Everything the method may see of its target. No test label is in it.

    The exception is named: a protocol that ``selects_on_test`` gives an oracle, which tells a classifier's accuracy.
    """
    from bolt.task.task import Task
    from orchestrator.artifacts.kinds import meta_start
    from orchestrator.cells.evaluation import evaluate

    labelled = TRACKS[cell.track].gives_support
    support = loaded.no_support()
    if method.uses_support and labelled:
        support = loaded.support(cell, method, method.support_feature_views(settings))
    initial = None
    if method.meta_recipe is not None:
        initial = loaded.meta_start(meta_start(cell, loaded.image_size(cell.backbone), method.meta_recipe(settings)))
    return Task(
        backbone=loaded.backbone(cell.backbone),
        head_CD=loaded.head(cell.backbone, cell.dataset),
        support=support,
        sources=loaded.sources(cell) if method.uses_sources and method.meta_recipe is None else None,
        protocol=cell.protocol,
        dataset=cell.dataset.name,
        seed=cell.seed,
        report=recorder.report,
        unlabelled=loaded.unlabelled(cell, method) if method.uses_support and not labelled else None,
        oracle=(lambda adapted: evaluate(cell, cell.dataset, adapted, loaded).accuracy)
        if cell.protocol.selects_on_test
        else None,
        after_epoch=recorder.after_epoch,
        initial=initial,
    )


def _short_classes(cell: Cell, task: Task) -> dict[str, int]:
    """How many classes gave fewer images than k, where any did."""
    if not len(task.support):
        return {}
    counts_C = task.support.labels_N.bincount(minlength=len(task.head_CD))
    short = int((counts_C < cell.shots).sum())
    return {"short_classes": short} if short else {}


def _reserved(mebibytes: float) -> dict[str, float]:
    """What a process held of its accelerator, by which the next cells of its kind are packed (``packing.py``)."""
    return {RESERVED: mebibytes} if mebibytes else {}
