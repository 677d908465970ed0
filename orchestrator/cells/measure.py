"""Measures one cell: makes its task, which holds no test labels, runs its method, and scores the classifier."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from bolt.model.model import Model
from bolt.model.saving import adapter_files
from bolt.task.classifiers import Classifier
from bolt.task.task import Adapted, Task
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import ArtifactCache, clear_artifact_caches
from orchestrator.cells.evaluation import add_classes, evaluate, evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.memory import peak_memory_mib, reset_peak_memory
from orchestrator.cells.splits import evaluation_split
from orchestrator.cells.task import make_task
from orchestrator.core.cell import Cell
from orchestrator.core.gpu_memory import RESERVED_MEMORY
from orchestrator.store.predictions import predictions_content, predictions_file
from orchestrator.store.results import Evaluation, Result, Timings
from orchestrator.tracks import Track

KEPT_BYTES = 2**20
"""Adapters up to this size in bytes are stored. A larger adapter can be made again by running its cell once more."""


@dataclass(frozen=True)
class Measurement:
    """A measured cell: its result, the content of its predictions file, and the method's output."""

    result: Result
    predictions: bytes
    adapted: Adapted


def measure(cell: Cell, loaded: ArtifactCache) -> Measurement:
    """Measure one cell.

    Raises what the method and :func:`make_task` raise, ``NonFiniteLogits`` (:mod:`bolt.task.scoring`), and
    ``ValueError`` for details that are neither numbers nor texts.
    """
    inputs = CellInputs(cell, loaded)  # frees memory of earlier cells, so the peak is reset after it
    reset_peak_memory(loaded.device)
    curves: dict[str, list[float]] = defaultdict(list)
    scoring_seconds = 0.0  # for scoring after epochs, which does not count as training

    def report(epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            curves[name].append(float(value))

    def after_epoch(epoch: int, make: Callable[[], Adapted]) -> None:
        """Score the classifier after this epoch, on tracks that ask for it. The method never sees the score."""
        nonlocal scoring_seconds
        if inputs.track.scored_after_epochs:
            started = time.perf_counter()
            split = evaluation_split(inputs, cell.dataset)
            report(epoch, {"accuracy": evaluate(inputs, split, make()).evaluation.accuracy})
            scoring_seconds += time.perf_counter() - started

    clock = [time.perf_counter()]
    task = replace(make_task(inputs), report=report, after_epoch=after_epoch)
    clock.append(time.perf_counter())
    views = inputs.artifacts.view_features
    read = [*(task.initial or {}).values(), *([loaded.get(views)] if views else [])]
    read += task.backbone.text_tower.state_dict().values() if task.text is not None else ()
    with _unchanged([*task.backbone.tower.state_dict().values(), *read]):
        adapted = inputs.method.run(task, inputs.settings)
    if not isinstance(adapted, Adapted):
        raise TypeError(f"adapt returned {type(adapted).__name__}, and not bolt.task.task.Adapted")
    adapted = add_classes(inputs, adapted, inputs.artifacts.head, inputs.adapted_classes)
    clock.append(time.perf_counter())
    scored = evaluate_cell(inputs, adapted)
    evaluations = tuple(each.evaluation for each in scored)
    clock.append(time.perf_counter())
    prepare, fit, score = (after - before for before, after in pairwise(clock))
    used, reserved = peak_memory_mib(loaded.device)
    predictions = predictions_content(each.predictions for each in scored)
    result = Result(
        cell=cell,
        evaluations=evaluations,
        trainable_parameters=adapted.trainable_parameters,
        timings=Timings(prepare, fit - scoring_seconds, score + scoring_seconds),
        peak_memory_mib=used,
        support_size=len(task.support),
        manifest=make_manifest(loaded, inputs.artifacts.addresses, task.backbone.precision),
        curves={name: tuple(values) for name, values in curves.items()},
        details={
            **adapted.details,
            **_short_classes(inputs, task),
            **_group_mean(inputs.track, evaluations),
            **({RESERVED_MEMORY: reserved} if reserved else {}),
        },
        predictions=predictions_file(predictions),
    )
    result.check()  # here and not while it is stored: an invalid result is a failure of the cell, not of the store
    return Measurement(result, predictions, adapted)


@contextmanager
def _unchanged(shared: Sequence[Tensor]) -> Iterator[None]:
    """Raise ``ValueError`` if the block changes a tensor in place that other cells of this process read, too."""
    before = [each._version for each in shared]
    try:
        yield
    finally:
        if changed := [each._version for each in shared] != before:
            clear_artifact_caches()
    if changed:  # not reached after an error of the block, which is passed on
        what = "the method changed a frozen tower or features of views in place, which other cells use: "
        raise ValueError(f"{what}change a copy, such as backbone.tower.copy()")


def _group_mean(track: Track, evaluations: tuple[Evaluation, ...]) -> dict[str, float]:
    """Return name of the mean, such as ``harmonic_mean`` -> mean accuracy of the class groups; empty without groups."""
    if track.group_mean is None:
        return {}
    accuracy = {found.dataset: found.accuracy for found in evaluations}
    groups = [accuracy[name] for name in track.class_groups]
    return {track.group_mean.name.replace(" ", "_"): track.group_mean.of(*groups)}


def _short_classes(inputs: CellInputs, task: Task) -> dict[str, int]:
    """Return an entry for the result's ``details``: the number of classes with fewer than k support images.

    On the imbalanced track, classes without any support image are counted instead. The mapping is empty if the number
    is 0.
    """
    if not len(task.support):
        return {}
    counts_C = task.support.labels_N.bincount(minlength=len(task.head_CD))
    imbalanced = inputs.track.support_draw(task.protocol) == "imbalanced"
    name, least = ("classes_without_images", 1) if imbalanced else ("short_classes", inputs.cell.shots)
    short = int((counts_C < least).sum())
    return {name: short} if short else {}


def adapter_to_keep(measurement: Measurement, loaded: ArtifactCache) -> dict[str, bytes] | None:
    """Return the files of a cell's adapter; ``None`` if it is larger than ``KEPT_BYTES`` or cannot be saved.

    No adapter is kept for fixed predictions, as on a stream: its classifier would predict otherwise.
    """
    if measurement.adapted.fixed_NC is not None or not isinstance(measurement.adapted.classify, Classifier):
        return None
    return adapter_files(model_of(measurement.result, measurement.adapted, loaded), KEPT_BYTES)


def model_of(result: Result, adapted: Adapted, loaded: ArtifactCache) -> Model:
    """Return the model of a finished cell. Its notes describe the cell, the data licence, accuracies and sources."""
    cell = result.cell
    entry = loaded.catalog.dataset(cell.dataset.name)
    accuracy, zero_shot = result.accuracies
    notes = {
        "cell": cell.id,
        "method": cell.method.name,
        "track": cell.track,
        "protocol": cell.protocol.name,
        "shots": cell.shots,
        "seed": cell.seed,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "accuracy": accuracy,
        "accuracy_zero_shot": zero_shot,
        "data_licence": entry.licence,
        "sources": {source.dataset: source.digest for source in cell.sources},
    }
    names = Images(cell.dataset, "test", loaded.image_size(cell.backbone)).class_names(loaded)
    return Model.from_adapted(loaded.backbone(cell.backbone), adapted, names, notes=notes, reading=entry.reading)
