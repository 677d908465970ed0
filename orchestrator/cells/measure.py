"""Measure one cell: gather its inputs, run its method, score the classifier.

The method sees a :class:`bolt.task.task.Task`, which holds no test labels. Scoring comes afterwards, in
``evaluation.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from bolt.model.saving import adapter_files
from bolt.task.classifiers import Classifier
from bolt.task.task import Adapted, Task
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.cells.evaluation import evaluate
from orchestrator.cells.inputs import CellInputs, gather_inputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.memory import PeakMemory
from orchestrator.cells.model import model_of
from orchestrator.core.cell import Cell
from orchestrator.core.gpu_memory import RESERVED_MEMORY
from orchestrator.store.results import Result, Timings
from orchestrator.tracks import TRACKS

KEPT_BYTES = 2**20
"""Adapters up to this size are stored. A larger one is made again by running its cell once more."""


@dataclass(frozen=True)
class Measurement:
    """A measured cell: its result, and what the method made."""

    result: Result
    adapted: Adapted


def measure(cell: Cell, loaded: LoadedArtifacts) -> Measurement:
    """Measure one cell.

    Raises what the method and :func:`gather_inputs` raise, ``NonFiniteLogits`` (:mod:`bolt.task.scoring`), and
    ``ValueError`` for details that are neither numbers nor texts.
    """
    with PeakMemory(loaded.device) as memory:
        clock = [time.perf_counter()]
        inputs = gather_inputs(cell, loaded)
        recorder = CurveRecorder(inputs)
        task = make_task(inputs, recorder)
        clock.append(time.perf_counter())
        adapted = inputs.method.run(task, inputs.settings)
        clock.append(time.perf_counter())
        evaluations = tuple(evaluate(inputs.test_data, dataset, adapted) for dataset in cell.evaluate_on)
        clock.append(time.perf_counter())
    prepare, fit, score = (after - before for before, after in pairwise(clock))
    reserved = {RESERVED_MEMORY: memory.reserved_mebibytes} if memory.reserved_mebibytes else {}
    result = Result(
        cell=cell,
        evaluations=evaluations,
        trainable_parameters=adapted.trainable_parameters,
        timings=Timings(prepare, fit - recorder.scoring_seconds, score + recorder.scoring_seconds),
        peak_memory_mib=memory.mebibytes,
        support_size=len(task.support),
        manifest=make_manifest(loaded, inputs.addresses),
        curves={name: tuple(values) for name, values in recorder.curves.items()},
        details={**adapted.details, **_short_classes(inputs), **reserved},
    )
    result.check()  # a result that cannot be stored is the cell's failure, not the store's
    return Measurement(result, adapted)


def make_task(inputs: CellInputs, recorder: CurveRecorder) -> Task:
    """Everything the method may see of its target. No test label is in it.

    There is one exception: a protocol that ``selects_on_test`` gives an oracle, which returns a classifier's accuracy.
    """
    cell = inputs.cell
    return Task(
        backbone=inputs.backbone,
        head_CD=inputs.head_CD,
        support=inputs.support,
        sources=inputs.sources,
        protocol=cell.protocol,
        dataset=cell.dataset.name,
        seed=cell.seed,
        report=recorder.report,
        unlabelled=inputs.unlabelled,
        oracle=(lambda adapted: evaluate(inputs.test_data, cell.dataset, adapted).accuracy)
        if cell.protocol.selects_on_test
        else None,
        after_epoch=recorder.after_epoch,
        initial=inputs.meta_start,
    )


class CurveRecorder:
    """Records a training's curves and, on tracks that ask for it, the accuracy after every epoch.

    Attributes:
        curves: name of a number -> its value after each epoch.
        scoring_seconds: time spent on these accuracies; it is no part of the training.
    """

    def __init__(self, inputs: CellInputs) -> None:
        self.curves: dict[str, list[float]] = {}
        self.scoring_seconds = 0.0
        self._inputs = inputs

    def report(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Record an epoch's numbers."""
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(float(value))

    def after_epoch(self, epoch: int, make: Callable[[], Adapted]) -> None:
        """Score the classifier as it is after this epoch. The method gets no answer."""
        cell = self._inputs.cell
        if not TRACKS[cell.track].scored_after_epochs:
            return
        started = time.perf_counter()
        score = evaluate(self._inputs.test_data, cell.dataset, make()).accuracy
        self.report(epoch, {"accuracy": score})
        self.scoring_seconds += time.perf_counter() - started


def adapter_to_keep(measurement: Measurement, loaded: LoadedArtifacts) -> dict[str, bytes] | None:
    """The files of a cell's adapter; ``None`` if it is larger than ``KEPT_BYTES`` or cannot be saved."""
    if not isinstance(measurement.adapted.classify, Classifier):
        return None
    return adapter_files(model_of(measurement.result, measurement.adapted, loaded), KEPT_BYTES)


def _short_classes(inputs: CellInputs) -> dict[str, int]:
    """How many classes have fewer support images than k, if any has."""
    if not len(inputs.support):
        return {}
    counts_C = inputs.support.labels_N.bincount(minlength=len(inputs.head_CD))
    short = int((counts_C < inputs.cell.shots).sum())
    return {"short_classes": short} if short else {}
