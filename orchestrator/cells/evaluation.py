"""Scores what a method made on the test splits of its cell: the only place where test labels meet predictions.

Shape legend: N images of a split, B batch, C classes, D embedding width, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bolt.clip.transfer import ReadAhead
from bolt.methods import METHODS
from bolt.task.classifiers import Classifier, NoNewClasses
from bolt.task.scoring import Predictions, accuracy, predict_classes, scoring_batches
from bolt.task.support import validation_tenth
from bolt.task.task import Adapted, cosine_classifier
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images, class_names
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.required import scored_on_validation, support_images
from orchestrator.core.cell import Cell, DatasetRef
from orchestrator.store.predictions import FULL_PROBABILITY, MAX_CLASSES, StoredPredictions
from orchestrator.store.results import Evaluation
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError

KEPT_PREDICTIONS = 64
"""Predictions that a process keeps: of the frozen backbone, and of towers that are made of the sources alone."""


@dataclass(frozen=True)
class TestSplit:
    """The images of one dataset that a cell is scored on.

    Attributes:
        labels_N: class of each image, as its number among the target's classes.
        rows_N: positions of the images in the dataset's split; ``None`` for the whole test split.
        pixels: ``pixels(start, stop)`` -> uint8 (B, 3, S, S).
        frozen: ``frozen(start, stop)`` -> the frozen tower's features (B, D).
    """

    labels_N: Tensor
    rows_N: Tensor | None
    pixels: Callable[[int, int], Tensor]
    frozen: Callable[[int, int], Tensor]


@dataclass(frozen=True)
class Scored:
    """The score of a classifier on one dataset, and its predictions for the same images."""

    evaluation: Evaluation
    predictions: StoredPredictions


def evaluate_cell(cell: Cell, adapted: Adapted, loaded: LoadedArtifacts) -> tuple[Scored, ...]:
    """Score a cell on its test splits. ``adapted`` is what :func:`name_new_classes` returned.

    With base and new classes, the target's test split comes first, among all classes. The images of the base classes
    follow, predicted among the base classes, and those of the new classes, predicted among the new ones.
    """
    track = TRACKS[cell.track]
    scored = [evaluate(cell, dataset, adapted, loaded) for dataset in cell.evaluate_on]
    if track.base_classes is not None:
        classes = len(loaded.get(target_head(cell, loaded)))
        base = track.base_classes(classes)
        for group, name in zip((range(base), range(base, classes)), track.class_groups, strict=True):
            scored.append(evaluate(cell, cell.dataset, adapted, loaded, group, name))
    return tuple(scored)


def name_new_classes(cell: Cell, adapted: Adapted, loaded: LoadedArtifacts) -> Adapted:
    """What the method made, with the target's new classes behind the base classes; as it is without new classes.

    A new class is its embedding of the zero-shot head or, if the method changed the text side, the embedding that the
    method gives its name. Raises :class:`bolt.task.classifiers.NoNewClasses` if the classifier cannot take them.
    """
    head = target_head(cell, loaded)
    head_CD = loaded.get(head)
    base = adapted_classes(cell, len(head_CD))
    if base == len(head_CD):
        return adapted
    new_CD = head_CD[base:]
    if adapted.embed_classes is not None:
        new_CD = adapted.embed_classes(head.words(loaded).class_names[base:])
    if not isinstance(adapted.classify, Classifier):
        raise NoNewClasses(f"{cell.method.name} made a function, which cannot classify new classes")
    return replace(adapted, classify=adapted.classify.add_classes(new_CD))


def adapted_classes(cell: Cell, classes: int) -> int:
    """How many of the target's classes the cell's method is adapted to: all, or the base classes."""
    base_classes = TRACKS[cell.track].base_classes
    return classes if base_classes is None else base_classes(classes)


def target_head(cell: Cell, loaded: LoadedArtifacts) -> Head:
    """The zero-shot head of all classes of the target, (C, D)."""
    return Head(cell.backbone, cell.dataset, loaded.image_size(cell.backbone))


def evaluate(
    cell: Cell,
    dataset: DatasetRef,
    adapted: Adapted,
    loaded: LoadedArtifacts,
    group: range | None = None,
    name: str = "",
) -> Scored:
    """Score a cell's classifier on one dataset, and the frozen backbone on the same images.

    If the dataset has fewer classes than the head, and the protocol asks for it, the score among its own classes is
    given too.

    Args:
        group: score on the test images of these classes alone, predicted among these classes. ``adapted`` classifies
            at least the classes up to the group's last one.
        name: of the scored images in reports; the dataset's by default.

    Raises :class:`bolt.task.scoring.NonFiniteLogits` for logits that are not numbers, ``ValueError`` for more than
    ``MAX_CLASSES`` classes, and ``FileNotFoundError`` for an artifact that is not built.
    """
    backbone = loaded.backbone(cell.backbone)
    head_CD = loaded.get(target_head(cell, loaded))
    validation = scored_on_validation(cell)
    split = _validation_split(cell, loaded) if validation else _test_split(cell, dataset, group, loaded)
    classes = range(len(head_CD)) if group is None else group
    if classes.stop > MAX_CLASSES:
        raise ValueError(f"predictions are stored for {MAX_CLASSES:,} classes at most, and {dataset.name} has more")
    labels_N = split.labels_N - classes.start
    total_C = torch.bincount(labels_N, minlength=len(classes))
    partial = group is None and bool((total_C == 0).any()) and cell.protocol.ood_label_space == "both"
    own_C = total_C > 0 if partial else None

    def predict(features_of: Callable[[int, int], Tensor], classify: Callable[[Tensor], Tensor]) -> Predictions:
        among = slice(classes.start, classes.stop)
        return predict_classes(len(labels_N), features_of, lambda features_BD: classify(features_BD)[:, among], own_C)

    def predict_adapted() -> Predictions:
        if adapted.tower is None:
            return predict(split.frozen, adapted.classify)
        with ReadAhead(lambda batch: split.pixels(*batch), scoring_batches(len(labels_N)), loaded.device) as pixels:
            return predict(lambda *batch: backbone.encode_images(pixels(batch), adapted.tower), adapted.classify)

    def cached(key: Hashable, make: Callable[[], Predictions]) -> Predictions:
        """What ``make`` gives; cached for cells with an equal key, unless other cells have other test images."""
        if key is None or split.rows_N is not None:
            return make()
        whole_key = cell.track, cell.protocol, cell.backbone, cell.dataset, dataset, key
        return loaded.cached(Predictions, whole_key, make, KEPT_PREDICTIONS)

    found = cached(None if adapted.source_key is None else (cell.sources, adapted.source_key), predict_adapted)
    text_head = cosine_classifier(head_CD, backbone.logit_scale)
    zero_shot = cached("zero-shot", lambda: predict(split.frozen, text_head))
    correct_C = torch.bincount(labels_N[found.all_classes == labels_N], minlength=len(classes))
    evaluation = Evaluation(
        dataset=name or dataset.name,
        accuracy=accuracy(found.all_classes, labels_N),
        correct=int(correct_C.sum()),
        total=len(labels_N),
        accuracy_zero_shot=accuracy(zero_shot.all_classes, labels_N),
        per_class=tuple((int(c), int(n)) for c, n in zip(correct_C, total_C, strict=True)),
        accuracy_own_classes=accuracy(found.own_classes, labels_N) if partial else None,
        accuracy_zero_shot_own_classes=accuracy(zero_shot.own_classes, labels_N) if partial else None,
    )
    predictions = StoredPredictions(
        evaluation.dataset,
        labels=split.labels_N.numpy().astype(np.uint16),
        predicted=(found.all_classes + classes.start).numpy().astype(np.uint16),
        probability=(found.probability * FULL_PROBABILITY).round().numpy().astype(np.uint8),
        rows=None if split.rows_N is None else split.rows_N.numpy().astype(np.uint32),
    )
    return Scored(evaluation, predictions)


def target_labels(target: DatasetRef, dataset: DatasetRef, image_size: int, loaded: LoadedArtifacts) -> Tensor:
    """Test labels of ``dataset`` as class numbers of ``target``, (N,).

    The classes of a variant of the target (ImageNet-A of ImageNet) are matched by their names. Raises ``UserError`` for
    a class that the target does not have.
    """
    labels = torch.from_numpy(loaded.get(Images(dataset, "test", image_size)).labels)
    if dataset == target:
        return labels
    number = {name: index for index, name in enumerate(class_names(loaded, target, image_size))}
    names = class_names(loaded, dataset, image_size)
    unknown = [name for name in names if name not in number]
    if unknown:
        raise UserError(f"{dataset.name} has classes that {target.name} does not have: {', '.join(unknown[:5])}")
    return torch.tensor([number[name] for name in names])[labels]


def _test_split(cell: Cell, dataset: DatasetRef, group: range | None, loaded: LoadedArtifacts) -> TestSplit:
    """The test split of a dataset, or its images of a group of classes; without the support if that is drawn from it.

    The largest support is left out, so that every k is scored on the same images.
    """
    size = loaded.image_size(cell.backbone)
    images = loaded.get(Images(dataset, "test", size))
    labels_N = target_labels(cell.dataset, dataset, size, loaded)
    frozen_ND = loaded.get(TestFeatures(cell.backbone, dataset, size))
    drawn_here = TRACKS[cell.track].support_split(cell.protocol) == "test" and dataset == cell.dataset
    without_support = drawn_here and METHODS[cell.method.name].uses_support
    if group is None and not without_support:
        return TestSplit(labels_N, None, images.batch, lambda start, stop: frozen_ND[start:stop].to(loaded.device))
    scored_N = torch.ones(len(labels_N), dtype=torch.bool)
    if group is not None:
        scored_N = (labels_N >= group.start) & (labels_N < group.stop)
    if without_support:
        scored_N[torch.from_numpy(loaded.get(support_images(cell, loaded.catalog)).indices)] = False
    rows_N = scored_N.nonzero().flatten()
    return TestSplit(
        labels_N[rows_N],
        rows_N,
        lambda start, stop: torch.stack([images.image(row) for row in rows_N[start:stop].tolist()]),
        lambda start, stop: frozen_ND[rows_N[start:stop]].to(loaded.device),
    )


def _validation_split(cell: Cell, loaded: LoadedArtifacts) -> TestSplit:
    """The tenth of the training split on which the authors of BOLT score their meta-learned start."""
    size = loaded.image_size(cell.backbone)
    images, backbone = loaded.get(Images(cell.dataset, "train", size)), loaded.backbone(cell.backbone)
    rows_N = validation_tenth(len(images))

    def pixels(start: int, stop: int) -> Tensor:
        return images.evaluation_views(rows_N[start:stop].tolist(), size)

    return TestSplit(
        torch.from_numpy(images.labels[rows_N]),
        torch.from_numpy(rows_N),
        pixels,
        lambda start, stop: backbone.encode_images(pixels(start, stop)),
    )
