"""Run one cell in this process. Knows nothing of Ray.

Support -> ``method.adapt`` -> score -> result. The method sees a :class:`bolt.task.Task`, in which there are no test
images and no test labels; scoring happens here, afterwards.

Shape legend: B batch, C classes, D embedding width.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from orchestrator.cell import Cell, DatasetRef
from orchestrator.results import Evaluation, Failure, Result, Timings
from orchestrator.settings import RunSettings
from orchestrator.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from bolt.task import Adapted
    from orchestrator.workbench import Workbench


@dataclass(frozen=True)
class Outcome:
    """How one attempt at a cell ended; the result or the failure record is in the store by then.

    Attributes:
        error: one line, empty when finished.
    """

    cell_id: str
    status: Literal["finished", "failed"]
    seconds: float
    error: str = ""


def run_and_record(cell: Cell, settings: RunSettings) -> Outcome:
    """Run a cell and write its result, or, when it fails, the failure with its traceback.

    Never raises for what the cell does; a store that cannot be written to does raise.
    """
    started = time.perf_counter()
    try:
        from orchestrator.workbench import workbench

        result = run_cell(cell, workbench(settings))
    except Exception as error:  # whatever a method raises is that cell's failure, not the run's
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        record_failure(Store(settings.store_url), cell.id, line, traceback.format_exc())
        return Outcome(cell.id, "failed", time.perf_counter() - started, line)
    Store(settings.store_url).write_result(result)
    return Outcome(cell.id, "finished", time.perf_counter() - started)


def record_failure(store: Store, failed_id: str, error: str, trace: str = "") -> None:
    """Record that a cell or an artifact could not be made, counting its attempts."""
    before = store.read_failure(failed_id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log = store.write_log(failed_id, trace or error)
    store.write_failure(Failure(failed_id, error, trace, log, (before.attempts if before else 0) + 1, now))


def run_cell(cell: Cell, bench: Workbench) -> Result:
    """Measure one cell with what is on the workbench.

    Raises what the method raises, :class:`orchestrator.scoring.NotFinite` for logits that are not numbers,
    ``FileNotFoundError`` for an artifact that is not built.
    """
    from bolt.methods import METHODS
    from bolt.task import Task
    from orchestrator.manifest import PeakMemory, make_manifest

    method = METHODS[cell.method.name]
    if method.version != cell.method.version:
        raise ValueError(f"the cell asks for version {cell.method.version} of {method.name}, this is {method.version}")
    settings = method.configure(cell.method.settings_dict())
    curves: dict[str, list[float]] = {}

    def report(epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            curves.setdefault(name, []).append(float(value))

    with PeakMemory(bench.device) as memory:
        clock = [time.perf_counter()]
        backbone = bench.backbone(cell.backbone)
        support = bench.support(cell, method.support_views(settings)) if method.uses_support else bench.no_support()
        task = Task(
            backbone=backbone,
            head_CD=bench.head(cell.backbone, cell.dataset),
            support=support,
            sources=bench.sources(cell) if method.uses_sources else None,
            protocol=cell.protocol,
            dataset=cell.dataset.name,
            seed=cell.seed,
            report=report,
        )
        clock.append(time.perf_counter())
        adapted = method.adapt(task, settings)
        clock.append(time.perf_counter())
        evaluations = tuple(_evaluate(cell, dataset, adapted, bench) for dataset in cell.evaluate_on)
        clock.append(time.perf_counter())
    prepare, fit, score = (after - before for before, after in pairwise(clock))
    return Result(
        cell=cell,
        evaluations=evaluations,
        trainable_parameters=adapted.trainable_parameters,
        timings=Timings(prepare, fit, score),
        peak_memory_mib=memory.mebibytes,
        support_size=len(support),
        manifest=make_manifest(bench, bench.addresses_read(cell, method, settings)),
        curves={name: tuple(values) for name, values in curves.items()},
        details=dict(adapted.details),
    )


def _evaluate(cell: Cell, dataset: DatasetRef, adapted: Adapted, bench: Workbench) -> Evaluation:
    """Score on one test split; the frozen backbone's own score stands beside it, on the same images."""
    import torch

    from bolt.task import cosine_classifier
    from orchestrator.scoring import accuracy, predictions

    size = bench.image_size(cell.backbone)
    backbone = bench.backbone(cell.backbone)
    images = bench.images(dataset, "test", size)
    labels = bench.labels_among(cell.dataset, dataset, size)
    classes = len(bench.class_names(cell.dataset, size))
    frozen = bench.test_features(cell.backbone, dataset)
    zero_shot = cosine_classifier(bench.head(cell.backbone, cell.dataset), backbone.logit_scale)

    def adapted_features(start: int, stop: int) -> Tensor:
        if adapted.tower is None:
            return frozen_features(start, stop)
        return backbone.encode_images(images.batch(start, stop), adapted.tower)

    def frozen_features(start: int, stop: int) -> Tensor:
        return frozen[start:stop].to(bench.device)

    predicted = predictions(len(images), adapted_features, adapted.classify)
    predicted_frozen = predictions(len(images), frozen_features, zero_shot)
    total = torch.bincount(labels, minlength=classes)
    correct = torch.bincount(labels[predicted == labels], minlength=classes)
    return Evaluation(
        dataset=dataset.name,
        accuracy=accuracy(predicted, labels),
        correct=int(correct.sum()),
        total=len(labels),
        accuracy_zero_shot=accuracy(predicted_frozen, labels),
        per_class=tuple((int(c), int(n)) for c, n in zip(correct, total, strict=True)),
    )
