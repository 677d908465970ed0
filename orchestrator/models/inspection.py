"""Inspects a finished cell: its predictions beside those of other methods, coefficients, and overlap of sources.

The store keeps predictions with the result. For an older result without predictions, the cell's model is restored
(:mod:`orchestrator.models.export`) and predicts again.

Shape legend: N test images, C classes, S sources, r coefficients, m, n a weight matrix's rows and columns.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from bolt.clip.tensor_names import matrix_names
from bolt.model.model import Model
from bolt.spectral.sources import Sources, build_basis
from bolt.task.classifiers import CosineClassifier
from bolt.task.scoring import predict_classes
from orchestrator.analysis.rows import labels_of
from orchestrator.artifacts.required import scored_on_validation
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.splits import target_labels
from orchestrator.grid.labels import method_labels
from orchestrator.models.export import load_adapter, readable_inputs, restore_model
from orchestrator.store import Store
from orchestrator.store.predictions import FULL_PROBABILITY, StoredPredictions
from orchestrator.store.results import Result

Classes = NDArray[np.int64]


@dataclass(frozen=True)
class SplitPredictions:
    """The predictions of a cell on one test split.

    Attributes:
        rows: positions of the images in the test split, (N,).
        labels, predicted, frozen: the true classes, and the predictions of the model and of zero-shot, (N,).
        confidence: the model's probability of the predicted class, (N,).
        rivals: cell id of another method -> its predictions for the same images, (N,), if the store has them.
        class_names: names of the classes from which predictions are chosen.
    """

    dataset: str
    rows: Classes
    labels: Classes
    predicted: Classes
    frozen: Classes
    confidence: NDArray[np.float64]
    rivals: Mapping[str, Classes]
    class_names: tuple[str, ...]

    def confusion(self) -> NDArray[np.int64]:
        """Return the confusion matrix (C, C): numbers of images by true class (row) and predicted class (column)."""
        counts_CC = np.zeros((len(self.class_names),) * 2, dtype=np.int64)
        np.add.at(counts_CC, (self.labels, self.predicted), 1)
        return counts_CC

    def mistakes(self) -> list[int]:
        """Return indices of the wrong predictions, the most confident first."""
        return self._by_confidence(self.predicted != self.labels)

    def right_alone(self, others: Sequence[str]) -> list[int]:
        """Return the indices of images that this cell classifies correctly and all cells in ``others`` misclassify.

        The most confident prediction comes first.
        """
        others_right = [self.rivals[name] == self.labels for name in others]
        return self._by_confidence((self.predicted == self.labels) & ~np.any(others_right, axis=0))

    def only_one_right(self, rival: str) -> tuple[int, int]:
        """Return how many images only this cell classifies correctly, and how many only ``rival``."""
        ours_N, theirs_N = self.predicted == self.labels, self.rivals[rival] == self.labels
        return int((ours_N & ~theirs_N).sum()), int((theirs_N & ~ours_N).sum())

    def _by_confidence(self, chosen_N: NDArray[np.bool_]) -> list[int]:
        chosen = np.flatnonzero(chosen_N)
        return [int(i) for i in chosen[np.argsort(-self.confidence[chosen], kind="stable")]]


@dataclass(frozen=True)
class Overlap:
    """How much the spans of the sources' leading directions overlap.

    Attributes:
        values: mean squared cosine between the spans of two sources, averaged over weight matrices, (S, S).
        random: the value to expect for random spans.
        directions: number of leading directions of a source.
    """

    sources: tuple[str, ...]
    values: NDArray[np.float64]
    random: float
    directions: int


@dataclass(frozen=True)
class CellInspection:
    """The findings of :func:`inspect_cell`.

    Attributes:
        how: the origin of the predictions: ``stored``, the ``kept`` model, or a second run (``again``).
        warnings: the warnings of :class:`orchestrator.models.export.RestoredModel`.
        splits: the predictions on each test split of the cell.
        rivals: results of other methods on the same task, the most accurate first.
        labels: cell id -> label of the method, for the cell and its rivals.
        coefficients: name of a weight matrix -> its coefficients before and after training, each (r,). The first
            is ``None`` if it is unknown. Empty for methods without coefficients.
        overlap: ``None`` for methods without sources.
    """

    result: Result
    how: str
    warnings: tuple[str, ...]
    splits: tuple[SplitPredictions, ...]
    rivals: tuple[Result, ...]
    labels: Mapping[str, str]
    coefficients: Mapping[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]
    overlap: Overlap | None


def inspect_cell(result: Result, loaded: ArtifactCache) -> CellInspection:
    """Return a cell's predictions, rivals, coefficients and overlap of sources.

    Raises what :func:`orchestrator.models.export.restore_model` raises.
    """
    cell = result.cell
    rivals = find_rivals(result, loaded.store)
    compared = [result, *rivals]
    labels = method_labels(each.cell.method for each in compared)
    # If a cell was scored on a part of the training split, the page shows new predictions on the test split.
    stored = loaded.store.read_predictions([] if scored_on_validation(cell) else compared)
    with readable_inputs(result, loaded):
        inputs = CellInputs(cell, loaded)
        restored = None if cell.id in stored else restore_model(result, loaded)
        model = restored.model if restored else load_adapter(cell, loaded)
        return CellInspection(
            result=result,
            how=restored.how if restored else "stored",
            warnings=restored.warnings if restored else (),
            splits=tuple(_split(inputs, index, stored, model) for index in range(len(cell.evaluate_on))),
            rivals=tuple(rivals),
            labels=labels_of((each.cell for each in compared), lambda cell: labels[cell.method]),
            coefficients=_coefficients(model, inputs, result) if model is not None else {},
            overlap=_overlap(inputs),
        )


def find_rivals(result: Result, store: Store) -> list[Result]:
    """Return the results of other methods on the same track, protocol, backbone, dataset, k and seed.

    A method without a support is a rival at every k, and a method without a seed under every seed. Damaged results are
    left out. The most accurate method comes first.
    """
    cell = result.cell
    track, backbone, dataset, k, _, seed = map(re.escape, cell.id.partition("--")[0].split("."))
    place = re.compile(rf"{track}\.{backbone}\.{dataset}\.({k}|k0)\.[^.]+\.({seed}|s0)--.*")
    rivals = []
    for name in filter(place.fullmatch, store.result_ids() - {cell.id}):  # avoids reading most results
        with suppress(FileNotFoundError, ValueError):
            rivals.append(store.read_result(name))
    same = attrgetter("track", "protocol", "backbone", "domain", "dataset", "evaluate_on")
    rivals = [rival for rival in rivals if same(rival.cell) == same(cell)]
    return sorted(rivals, key=lambda rival: (-rival.evaluations[0].accuracy, rival.cell.id))


def _split(
    inputs: CellInputs, index: int, by_cell: Mapping[str, Sequence[StoredPredictions]], model: Model | None
) -> SplitPredictions:
    """Return the predictions on one test split: those in the store, or else new ones of ``model`` for the whole split.

    ``by_cell``: cell id -> the stored predictions on each split.
    """
    cell, loaded, backbone = inputs.cell, inputs.loaded, inputs.backbone
    dataset, stored = cell.evaluate_on[index], {name: splits[index] for name, splits in by_cell.items()}
    features = inputs.artifacts.features_of(dataset)
    own_head = next((head for head in inputs.artifacts.own_heads if head.dataset == dataset), None)
    # The classes of a dataset with its own class words are numbered after those of the target.
    head, first = own_head or inputs.artifacts.head, len(inputs.head_CD) if own_head else 0
    labels_N = target_labels(inputs, features.images).numpy() - first
    if (own := stored.get(cell.id)) is not None:
        rows = _rows(own)
        predicted, confidence = own.predicted.astype(np.int64) - first, own.probability / FULL_PROBABILITY
    else:
        assert model is not None, "no stored predictions, and no restored model"
        assert own_head is None, "results on datasets with their own class words have always had predictions"
        rows, tower, images = np.arange(len(labels_N)), model.tower, loaded.get(features.images)
        found = predict_classes(
            len(rows), lambda start, stop: backbone.encode_images(images.batch(start, stop), tower), model.classifier
        )
        predicted, confidence = found.all_classes.numpy(), found.probability.double().numpy()
    frozen_ND = loaded.get(features)
    text_head = CosineClassifier(loaded.get(head), backbone.logit_scale)
    zero_shot = predict_classes(len(labels_N), lambda start, stop: frozen_ND[start:stop].to(loaded.device), text_head)
    others = {name: _predicted_at(rows, theirs) for name, theirs in stored.items() if name != cell.id}
    rivals = {name: predicted_N - first for name, predicted_N in others.items() if predicted_N is not None}
    frozen, names = zero_shot.all_classes.numpy()[rows], head.images.class_names(loaded)
    return SplitPredictions(dataset.name, rows, labels_N[rows], predicted, frozen, confidence, rivals, names)


def _rows(stored: StoredPredictions) -> Classes:
    """Return the positions of the scored images in their split, (N,)."""
    return np.arange(len(stored.labels)) if stored.rows is None else stored.rows.astype(np.int64)


def _predicted_at(rows: Classes, stored: StoredPredictions) -> Classes | None:
    """Return the stored predictions for the images at ``rows`` of the split; ``None`` if one is missing."""
    theirs = _rows(stored)
    if not np.isin(rows, theirs).all():
        return None
    order = np.argsort(theirs)
    found: Classes = stored.predicted[order[np.searchsorted(theirs, rows, sorter=order)]].astype(np.int64)
    return found


def _coefficients(
    model: Model, inputs: CellInputs, result: Result
) -> dict[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]:
    """Return the coefficients of each weight matrix before and after training; empty for a method without any.

    The coefficients before training are the mean of the sources' coefficients, times the recorded scale alpha. They are
    ``None`` if the method pools the sources in another way, or if there are no sources or no alpha.
    """
    if model.change is None:
        return {}
    settings, alpha = result.cell.method.settings_dict(), result.details.get("alpha")
    mean_pooled = settings.get("pooling", "mean") == "mean"
    sources, found = inputs.sources, {}
    frozen = inputs.backbone.tower.state_dict_open_clip()
    for name, s in model.change.coefficients.items():
        before = None
        if sources is not None and mean_pooled and isinstance(alpha, int | float):
            pooled = build_basis(sources, model.change.recipe, name, frozen[name]).pooled
            before = (float(alpha) * pooled.double().cpu()).numpy()
        found[name] = (before, s.detach().double().cpu().numpy())
    return found


def _overlap(inputs: CellInputs) -> Overlap | None:
    top_k = inputs.cell.method.settings_dict().get("top_k")
    if inputs.sources is None or not isinstance(top_k, int):
        return None
    return source_overlap(inputs.sources, matrix_names(inputs.backbone.tower.state_dict_open_clip()), top_k)


def source_overlap(sources: Sources, matrices: Sequence[str], top_k: int) -> Overlap:
    """Return how much the sources' leading singular directions overlap, for each pair of sources.

    The overlap is the mean squared cosine of the principal angles between the spans of the two sources' directions,
    averaged over ``matrices``.

    The value of a matrix is ``(|Ui^T Uj|_F^2 + |Vi^T Vj|_F^2) / 2k``. It is 1 for equal spans of U and of V, and on
    average k / m for random spans in m dimensions. A task vector of lower rank has fewer directions; then k is the
    smaller number of directions of the two sources.
    """
    total_SS, random = np.zeros((len(sources.names),) * 2), 0.0
    for matrix in matrices:
        found = sources.directions(matrix, top_k)
        for spans in ([directions.u.double() for directions in found], [directions.v.double() for directions in found]):
            m, k = spans[0].shape
            sums_SS = np.array([[float((a.mT @ b).square().sum()) for b in spans] for a in spans])
            # A matrix that fine-tuning did not change has no directions.
            k_S = [max(span.shape[1], 1) for span in spans]
            total_SS += sums_SS / np.minimum.outer(k_S, k_S)
            random += k / m
    count = 2 * len(matrices)
    return Overlap(sources.names, total_SS / count, random / count, top_k)
