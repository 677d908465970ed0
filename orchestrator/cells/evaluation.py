"""Scores the classifier of a cell. While the cell runs, only this module compares predictions with test labels.

Shape legend: N images of a split, B batch, C classes, D embedding width.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bolt.clip.transfer import ReadAhead
from bolt.task.classifiers import Classifier, CosineClassifier, NoNewClasses
from bolt.task.scoring import Predictions, accuracy, logits_of, predict_classes, scoring_batches
from bolt.task.task import Adapted
from orchestrator.artifacts.head import Head
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.splits import EvaluationSplit, evaluation_splits
from orchestrator.store.predictions import FULL_PROBABILITY, MAX_CLASSES, StoredPredictions
from orchestrator.store.results import Evaluation

KEPT_PREDICTIONS = 64
"""Number of ``Predictions`` that a process keeps for other cells: the predictions of the frozen backbone, and of towers
that depend on the source models alone."""


@dataclass(frozen=True)
class Scored:
    """The score of a classifier on one split, and its predictions for the same images."""

    evaluation: Evaluation
    predictions: StoredPredictions


def evaluate_cell(inputs: CellInputs, adapted: Adapted) -> tuple[Scored, ...]:
    """Return the scores of a cell on all its splits. ``adapted``: has the target's new classes, too."""
    return tuple(evaluate(inputs, split, adapted) for split in evaluation_splits(inputs))


def add_classes(inputs: CellInputs, adapted: Adapted, head: Head, first: int = 0) -> Adapted:
    """Return the method's result with more classes in its classifier: the classes of ``head`` from ``first`` on.

    The vector of a new class is its embedding in the zero-shot head or, if the method changed the text side, the
    method's embedding of the class name. Raises :class:`bolt.task.classifiers.NoNewClasses` if the classifier takes no
    new classes.
    """
    new_CD = inputs.loaded.get(head)[first:]
    if not len(new_CD):
        return adapted
    if adapted.embed_classes is not None:
        new_CD = adapted.embed_classes(head.class_text(inputs.loaded).class_names[first:])
    if not isinstance(adapted.classify, Classifier):
        raise NoNewClasses(f"{inputs.method.name} returned a plain function, which cannot classify new classes")
    return replace(adapted, classify=adapted.classify.add_classes(new_CD))


def evaluate(inputs: CellInputs, split: EvaluationSplit, adapted: Adapted) -> Scored:
    """Return the scores of a classifier and of the frozen backbone on one split, and the classifier's predictions.

    The scores include the accuracy among the classes with images in the split, if the protocol asks for this accuracy
    and some classes of the head have no image there. ``adapted`` must classify all classes of the split, except the
    classes of ``split.own_head``, which this function adds.

    Raises :class:`bolt.task.scoring.NonFiniteLogits` for infinite or NaN logits, ``ValueError`` for more than
    ``MAX_CLASSES`` classes or for other numbers of logits and classes, and ``FileNotFoundError`` for an artifact that
    is not built.
    """
    cell, backbone, loaded, classes = inputs.cell, inputs.backbone, inputs.loaded, split.classes
    head_CD = inputs.head_CD
    if split.own_head is not None:
        adapted = add_classes(inputs, adapted, split.own_head)
        head_CD = torch.cat([head_CD, loaded.get(split.own_head)])
    if classes.stop > MAX_CLASSES:
        raise ValueError(f"predictions are stored for {MAX_CLASSES:,} classes at most, and {split.name} has more")
    labels_N = split.labels_N - classes.start
    total_C = torch.bincount(labels_N, minlength=len(classes))
    partial = len(classes) == len(head_CD) and bool((total_C == 0).any()) and cell.protocol.ood_label_space == "both"
    own_C = total_C > 0 if partial else None

    def predict(features_of: Callable[[int, int], Tensor], classify: Callable[[Tensor], Tensor]) -> Predictions:
        return predict_classes(len(labels_N), features_of, logits_of(classes, len(head_CD), classify), own_C)

    def predict_adapted() -> Predictions:
        if (fixed_NC := adapted.fixed_NC) is not None:
            return predict(lambda start, stop: fixed_NC[start:stop], lambda logits_BC: logits_BC)
        if adapted.tower is None:
            return predict(split.frozen, adapted.classify)
        with ReadAhead(lambda batch: split.pixels(*batch), scoring_batches(len(labels_N)), loaded.device) as pixels:
            return predict(lambda *batch: backbone.encode_images(pixels(batch), adapted.tower), adapted.classify)

    def cached(key: Hashable, make: Callable[[], Predictions]) -> Predictions:
        """Return ``make()``. If there is a key and the whole split is scored, the value is cached for other cells."""
        if key is None or split.rows_N is not None:
            return make()
        whole_key = cell.track, cell.protocol, cell.backbone, cell.dataset, split.dataset, key
        return loaded.cached(Predictions, whole_key, make, KEPT_PREDICTIONS)

    found = cached(None if adapted.source_key is None else (cell.sources, adapted.source_key), predict_adapted)
    text_head = CosineClassifier(head_CD, backbone.logit_scale)
    zero_shot = cached("zero-shot", lambda: predict(split.frozen, text_head))
    correct_C = torch.bincount(labels_N[found.all_classes == labels_N], minlength=len(classes))
    evaluation = Evaluation(
        dataset=split.name,
        accuracy=accuracy(found.all_classes, labels_N),
        correct=int(correct_C.sum()),
        total=len(labels_N),
        accuracy_zero_shot=accuracy(zero_shot.all_classes, labels_N),
        per_class=tuple((int(c), int(n)) for c, n in zip(correct_C, total_C, strict=True)),
        accuracy_own_classes=accuracy(found.own_classes, labels_N) if partial else None,
        accuracy_zero_shot_own_classes=accuracy(zero_shot.own_classes, labels_N) if partial else None,
    )
    predictions = StoredPredictions(
        split.name,
        labels=split.labels_N.numpy().astype(np.uint16),
        predicted=(found.all_classes + classes.start).numpy().astype(np.uint16),
        probability=(found.probability * FULL_PROBABILITY).round().numpy().astype(np.uint8),
        rows=None if split.rows_N is None else split.rows_N.numpy().astype(np.uint32),
    )
    return Scored(evaluation, predictions)
