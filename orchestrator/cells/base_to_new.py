"""Tracks with base and new classes: names the new classes after adaptation, and scores both groups.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bolt.task.classifiers import Classifier, NoNewClasses
from bolt.task.task import Adapted
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.cells.evaluation import Scored, evaluate
from orchestrator.core.cell import Cell
from orchestrator.store.results import Evaluation
from orchestrator.tracks import TRACKS
from orchestrator.tracks.base_to_new import BASE_CLASSES, NEW_CLASSES, harmonic_mean


def adapted_classes(cell: Cell, classes: int) -> int:
    """How many of the target's classes the cell's method is adapted to: all, or the base classes."""
    base_classes = TRACKS[cell.track].base_classes
    return classes if base_classes is None else base_classes(classes)


def name_new_classes(cell: Cell, adapted: Adapted, loaded: LoadedArtifacts) -> Adapted:
    """What the method made, with the target's new classes behind the base classes; as it is without new classes.

    A new class is its embedding of the zero-shot head or, if the method changed the text side, the embedding that the
    method gives its name.
    Raises :class:`bolt.task.classifiers.NoNewClasses` if the classifier cannot take them.
    """
    head_CD = _head(cell, loaded)
    base = adapted_classes(cell, len(head_CD))
    if base == len(head_CD):
        return adapted
    new_CD = head_CD[base:]
    if adapted.embed_classes is not None:
        spec = _head_spec(cell, loaded)
        new_CD = adapted.embed_classes(spec.words(loaded.artifact(spec.address)).class_names[base:])
    if not isinstance(adapted.classify, Classifier):
        raise NoNewClasses(f"{cell.method.name} made a function, which cannot classify new classes")
    return replace(adapted, classify=adapted.classify.add_classes(new_CD))


def evaluate_cell(cell: Cell, adapted: Adapted, loaded: LoadedArtifacts) -> tuple[Scored, ...]:
    """Score a cell on its test splits. ``adapted`` is what :func:`name_new_classes` returned.

    With base and new classes, the target's test split comes first, among all classes. The images of the base classes
    follow, predicted among the base classes, and those of the new classes, predicted among the new ones.
    """
    if TRACKS[cell.track].base_classes is None:
        return tuple(evaluate(cell, dataset, adapted, loaded) for dataset in cell.evaluate_on)
    classes = len(_head(cell, loaded))
    base = adapted_classes(cell, classes)
    return (
        evaluate(cell, cell.dataset, adapted, loaded),
        evaluate(cell, cell.dataset, adapted, loaded, range(base), BASE_CLASSES),
        evaluate(cell, cell.dataset, adapted, loaded, range(base, classes), NEW_CLASSES),
    )


def group_details(evaluations: tuple[Evaluation, ...]) -> dict[str, float]:
    """``harmonic_mean`` of the accuracies on base and on new classes, per cent; nothing without such groups."""
    accuracy = {found.dataset: found.accuracy for found in evaluations}
    if NEW_CLASSES not in accuracy:
        return {}
    return {"harmonic_mean": harmonic_mean(accuracy[BASE_CLASSES], accuracy[NEW_CLASSES])}


def _head(cell: Cell, loaded: LoadedArtifacts) -> Tensor:
    """The zero-shot head of all classes of the target, (C, D)."""
    return loaded.get(_head_spec(cell, loaded))


def _head_spec(cell: Cell, loaded: LoadedArtifacts) -> Head:
    return Head(cell.backbone, cell.dataset, loaded.image_size(cell.backbone))
