"""Looking inside a finished cell: what it gets wrong, what its coefficients became, and how its sources overlap.

Nothing of this is kept with a result. The cell's model is, or is made again with the same bits, and predicts anew.

Shape legend: N test images, B batch, C classes, S sources, r coefficients, m, n a weight matrix's rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bolt.spectral.sources import basis_of
from bolt.task.scoring import SCORING_BATCH, predictions
from bolt.task.task import cosine_classifier
from orchestrator.models.exporting import make_model
from orchestrator.store.results import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bolt.model.model import Model
    from bolt.spectral.directions import Directions
    from bolt.spectral.sources import Sources
    from orchestrator.artifacts.loaded import LoadedArtifacts


@dataclass(frozen=True)
class Predicted:
    """What a model says of a whole test split, whichever of its images the cell was scored on.

    Attributes:
        labels, predicted, frozen: the true class, the model's and the frozen backbone's, (N,).
        sure, of_truth: the model's probability of the class it says, and of the true one, (N,).
    """

    dataset: str
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    frozen: NDArray[np.int64]
    sure: NDArray[np.float64]
    of_truth: NDArray[np.float64]

    def confusion(self, classes: int) -> NDArray[np.int64]:
        """How many images of each class (row) are said to be of each class (column), (C, C)."""
        counts_CC = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(counts_CC, (self.labels, self.predicted), 1)
        return counts_CC

    def worst(self, count: int) -> list[int]:
        """The wrong images of which the model is surest, against the truth, that first."""
        margin_N = np.log(self.sure + 1e-12) - np.log(self.of_truth + 1e-12)
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = np.lexsort((wrong, -margin_N[wrong]))
        return [int(i) for i in wrong[order][:count]]


@dataclass(frozen=True)
class Inside:
    """A finished cell, looked into.

    Attributes:
        how, warnings: as in :class:`orchestrator.models.exporting.Made`.
        predicted: on each test split that the cell was scored on.
        coefficients: by weight matrix, the scaled pooled coefficients that training began with (``None`` where they
            cannot be told) and those it ended with, (r,); empty for methods without.
        sources, overlap: names, and the mean squared cosine between the spans of two sources' leading directions,
            averaged over weight matrices, (S, S); empty for methods without sources.
        directions: how many of each source are compared.
    """

    result: Result
    class_names: tuple[str, ...]
    how: str
    warnings: tuple[str, ...]
    predicted: tuple[Predicted, ...]
    coefficients: dict[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]
    sources: tuple[str, ...]
    overlap: NDArray[np.float64]
    directions: int


def look_inside(result: Result, loaded: LoadedArtifacts) -> Inside:
    """Make the cell's model, let it predict, and read its sources. Raises as ``exporting.make_model``."""
    made = make_model(result, loaded)
    names, overlap_SS, top_k = _overlap(made.model, loaded, result)
    return Inside(
        result=result,
        class_names=made.model.about.class_names,
        how=made.how,
        warnings=made.warnings,
        predicted=tuple(_predicted(made.model, result, i, loaded) for i in range(len(result.cell.evaluate_on))),
        coefficients=_coefficients(made.model, loaded, result),
        sources=names,
        overlap=overlap_SS,
        directions=top_k,
    )


def _predicted(model: Model, result: Result, index: int, loaded: LoadedArtifacts) -> Predicted:
    cell = result.cell
    dataset, size = cell.evaluate_on[index], loaded.image_size(cell.backbone)
    images = loaded.images(dataset, "test", size)
    labels_N = loaded.labels_among(cell.dataset, dataset, size)
    said, sure, of_truth = [], [], []
    for start in range(0, len(labels_N), SCORING_BATCH):
        stop = min(start + SCORING_BATCH, len(labels_N))
        chances_BC = model.logits(images.batch(start, stop)).double().softmax(-1).cpu()
        top_B = chances_BC.max(-1)
        said.append(top_B.indices)
        sure.append(top_B.values)
        of_truth.append(chances_BC.gather(1, labels_N[start:stop, None])[:, 0])
    backbone, frozen = loaded.backbone(cell.backbone), loaded.test_features(cell.backbone, dataset)
    head = cosine_classifier(loaded.head(cell.backbone, cell.dataset), backbone.logit_scale)
    zero_shot = predictions(len(labels_N), lambda start, stop: frozen[start:stop].to(loaded.device), head)
    return Predicted(
        dataset.name,
        *(tensor.numpy() for tensor in (labels_N, torch.cat(said), zero_shot.of_all)),
        *(torch.cat(parts).numpy() for parts in (sure, of_truth)),
    )


def _coefficients(
    model: Model, loaded: LoadedArtifacts, result: Result
) -> dict[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]]:
    """Where training began follows from the sources and the recorded scale, where they are pooled by their mean."""
    if model.change is None:
        return {}
    settings, alpha = result.cell.method.settings_dict(), result.details.get("alpha")
    plain = isinstance(alpha, int | float) and settings.get("pooling", "mean") == "mean"
    sources, found = loaded.sources(result.cell), {}
    for name, s in model.change.coefficients.items():
        basis = model.change.bases[name]
        began = None
        if plain:
            pooled = basis_of(sources, model.change.recipe, name, (len(basis.u), len(basis.v))).pooled
            began = (float(alpha or 0) * pooled.double().cpu()).numpy()
        found[name] = (began, s.detach().double().cpu().numpy())
    return found


def _overlap(model: Model, loaded: LoadedArtifacts, result: Result) -> tuple[tuple[str, ...], NDArray[np.float64], int]:
    from bolt.clip.backbone import matrix_names
    from bolt.methods import METHODS

    method = METHODS[result.cell.method.name]
    top_k = result.cell.method.settings_dict().get("top_k")
    if not method.uses_sources or method.meta_recipe is not None or not isinstance(top_k, int):
        return (), np.zeros((0, 0)), 0
    sources = loaded.sources(result.cell)
    overlap_SS = source_overlap(sources, matrix_names(model.tower.state_dict_open_clip()), top_k)
    return sources.names, overlap_SS, top_k


def source_overlap(sources: Sources, matrices: Sequence[str], top_k: int) -> NDArray[np.float64]:
    """(S, S): mean squared cosine of the principal angles between two sources' leading directions, over matrices.

    Both spans are compared, that of U and that of V: ``(|Ui^T Uj|_F^2 + |Vi^T Vj|_F^2) / 2k``. 1 is one span, and
    k / m is what random spans of m dimensions have.
    """
    total_SS = np.zeros((len(sources.names),) * 2)
    for matrix in matrices:
        found = sources.directions(matrix, top_k)
        for part in ("u", "v"):
            total_SS += _overlap_of([_span(directions, part) for directions in found])
    return total_SS / (2 * max(len(matrices), 1))


def _span(directions: Directions, part: str) -> Tensor:
    columns: Tensor = getattr(directions, part)
    return columns.double()


def _overlap_of(spans: Sequence[Tensor]) -> NDArray[np.float64]:
    """(S, S) of orthonormal columns (m, k)."""
    sums_SS = np.array([[float((a.mT @ b).square().sum()) for b in spans] for a in spans])
    least_SS = np.array([[max(min(a.shape[1], b.shape[1]), 1) for b in spans] for a in spans])
    return np.asarray(sums_SS / least_SS)
