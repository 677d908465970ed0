"""Inspect a finished cell: its wrong predictions, its trained coefficients, and the overlap of its sources.

Results do not keep predictions. The cell's model is restored (:mod:`orchestrator.models.export`) and predicts again.

Shape legend: N test images, B batch, C classes, S sources, r coefficients, m, n a weight matrix's rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bolt.clip.tensor_names import matrix_names
from bolt.model.model import Model
from bolt.spectral.sources import Sources, build_basis
from bolt.task.scoring import SCORING_BATCH, predict_classes
from bolt.task.task import cosine_classifier
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.test_features import TestFeatures
from orchestrator.cells.evaluation import target_labels
from orchestrator.cells.task import cell_sources
from orchestrator.core.cell import Cell, DatasetRef
from orchestrator.models.export import restore_model
from orchestrator.store.results import Result


@dataclass(frozen=True)
class SplitPredictions:
    """The predictions of a model on a whole test split.

    Attributes:
        labels, predicted, frozen: the true class, the model's and the zero-shot classifier's prediction, (N,).
        confidence, truth_probability: the model's probability of the predicted and of the true class, (N,).
    """

    dataset: str
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    frozen: NDArray[np.int64]
    confidence: NDArray[np.float64]
    truth_probability: NDArray[np.float64]

    def confusion(self, classes: int) -> NDArray[np.int64]:
        """Confusion matrix (C, C): images of each true class (row) by predicted class (column)."""
        counts_CC = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(counts_CC, (self.labels, self.predicted), 1)
        return counts_CC

    def worst(self, count: int) -> list[int]:
        """Rows of the wrong predictions with the largest log-ratio of confidence to the true class's probability."""
        margin_N = np.log(self.confidence + 1e-12) - np.log(self.truth_probability + 1e-12)
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = np.lexsort((wrong, -margin_N[wrong]))
        return [int(i) for i in wrong[order][:count]]


@dataclass(frozen=True)
class CellInspection:
    """What :func:`inspect_cell` finds.

    Attributes:
        how, warnings: as in :class:`orchestrator.models.export.RestoredModel`.
        predicted: the predictions on each test split of the cell.
        coefficients: per weight matrix, the pooled coefficients before training (``None`` if unknown) and the
            trained ones, (r,); empty for methods without coefficients.
        sources, overlap: names, and the mean squared cosine between the spans of two sources' leading directions,
            averaged over weight matrices, (S, S); empty for methods without sources.
        directions: directions of each source that are compared.
    """

    result: Result
    class_names: tuple[str, ...]
    how: str
    warnings: tuple[str, ...]
    predicted: tuple[SplitPredictions, ...]
    coefficients: dict[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]
    sources: tuple[str, ...]
    overlap: NDArray[np.float64]
    directions: int


def inspect_cell(result: Result, loaded: LoadedArtifacts) -> CellInspection:
    """Restore the cell's model, predict its test splits, and compare its sources. Raises as ``restore_model``."""
    made = restore_model(result, loaded)
    names, overlap_SS, top_k = _overlap(made.model, loaded, result)
    return CellInspection(
        result=result,
        class_names=made.model.about.class_names,
        how=made.how,
        warnings=made.warnings,
        predicted=tuple(_predicted(made.model, result.cell, dataset, loaded) for dataset in result.cell.evaluate_on),
        coefficients=_coefficients(made.model, loaded, result),
        sources=names,
        overlap=overlap_SS,
        directions=top_k,
    )


def _predicted(model: Model, cell: Cell, dataset: DatasetRef, loaded: LoadedArtifacts) -> SplitPredictions:
    size = loaded.image_size(cell.backbone)
    images = loaded.get(Images(dataset, "test", size))
    labels_N = target_labels(cell.dataset, dataset, size, loaded)
    predicted, confidence, truth_probability = [], [], []
    for start in range(0, len(labels_N), SCORING_BATCH):
        stop = min(start + SCORING_BATCH, len(labels_N))
        probabilities_BC = model.logits(images.batch(start, stop)).double().softmax(-1).cpu()
        top_B = probabilities_BC.max(-1)
        predicted.append(top_B.indices)
        confidence.append(top_B.values)
        truth_probability.append(probabilities_BC.gather(1, labels_N[start:stop, None])[:, 0])
    frozen = loaded.get(TestFeatures(cell.backbone, dataset, size))
    head_CD = loaded.get(Head(cell.backbone, cell.dataset, size))
    head = cosine_classifier(head_CD, loaded.backbone(cell.backbone).logit_scale)
    zero_shot = predict_classes(len(labels_N), lambda start, stop: frozen[start:stop].to(loaded.device), head)
    return SplitPredictions(
        dataset.name,
        *(tensor.numpy() for tensor in (labels_N, torch.cat(predicted), zero_shot.all_classes)),
        *(torch.cat(parts).numpy() for parts in (confidence, truth_probability)),
    )


def _coefficients(
    model: Model, loaded: LoadedArtifacts, result: Result
) -> dict[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]:
    """Per matrix, the coefficients before and after training. With mean pooling, sources and alpha give the former."""
    if model.change is None:
        return {}
    settings, alpha = result.cell.method.settings_dict(), result.details.get("alpha")
    mean_pooled = settings.get("pooling", "mean") == "mean"
    sources, found = cell_sources(result.cell, loaded), {}
    frozen = loaded.backbone(result.cell.backbone).tower.state_dict_open_clip()
    for name, s in model.change.coefficients.items():
        before = None
        if sources is not None and mean_pooled and isinstance(alpha, int | float):
            pooled = build_basis(sources, model.change.recipe, name, frozen[name]).pooled
            before = (float(alpha) * pooled.double().cpu()).numpy()
        found[name] = (before, s.detach().double().cpu().numpy())
    return found


def _overlap(model: Model, loaded: LoadedArtifacts, result: Result) -> tuple[tuple[str, ...], NDArray[np.float64], int]:
    """Names of the sources, their overlap, and how many directions of each are compared."""
    top_k = result.cell.method.settings_dict().get("top_k")
    sources = cell_sources(result.cell, loaded)
    if sources is None or not isinstance(top_k, int):
        return (), np.zeros((0, 0)), 0
    overlap_SS = source_overlap(sources, matrix_names(model.tower.state_dict_open_clip()), top_k)
    return sources.names, overlap_SS, top_k


def source_overlap(sources: Sources, matrices: Sequence[str], top_k: int) -> NDArray[np.float64]:
    """(S, S): mean squared cosine of the principal angles between two sources' leading directions, over matrices.

    ``(|Ui^T Uj|_F^2 + |Vi^T Vj|_F^2) / 2k``: 1 for equal spans of U and of V, about k / m for random spans in m
    dimensions.
    """
    total_SS = np.zeros((len(sources.names),) * 2)
    for matrix in matrices:
        found = sources.directions(matrix, top_k)
        total_SS += _overlap_of([directions.u.double() for directions in found])
        total_SS += _overlap_of([directions.v.double() for directions in found])
    return total_SS / (2 * max(len(matrices), 1))


def _overlap_of(spans: Sequence[Tensor]) -> NDArray[np.float64]:
    """(S, S) of orthonormal columns (m, k)."""
    sums_SS = np.array([[float((a.mT @ b).square().sum()) for b in spans] for a in spans])
    least_SS = np.array([[max(min(a.shape[1], b.shape[1]), 1) for b in spans] for a in spans])
    return np.asarray(sums_SS / least_SS)
