"""ProKeR: kernel ridge regression of what the text head misses, without training (Bendou et al., CVPR 2025).

Paper: arXiv:2501.11175. The rows S are the unit features of A views of each support image, and Y their labels. The text
head without its scale, g(f) = f T^T, is corrected by a kernel k(f, f') = exp(-beta (1 - f . f'))::

    h(f) = g(f) + k(f, S) a,    a = inverse(K / lambda + I) (Y - g(S))

As in the authors' code, the correction is lambda times that of textbook kernel ridge regression: a small lambda gives
the text head, and an infinite one the plain sum of kernels. What differs from that code:

- beta and lambda are chosen by leave-one-out, which is a closed form: an image is predicted with all its views removed.
  The official code chooses on a labelled validation split, as is done here under a protocol that gives validation
  images. If a class has a single image, or there are more than 3,000 images, the pair that the authors give for
  ImageNet at this number of shots is used.
- There are at most 3,000 rows, because the time of a solution grows with the cube of their number. Many images have
  fewer views each.
- The logits are multiplied by CLIP's scale, so that their softmax is a probability. The official code leaves them.

Shape legend: N images, n = A N rows, A views, B queries, V validation images, C classes, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.cross_validation import NO_HOLD_OUT, fewest_images
from bolt.methods.common.frozen_features import unit_support_features, unit_validation_features
from bolt.task.classifiers import CacheClassifier
from bolt.task.task import Adapted, Task

FIXED = ((1, 3.0, 0.05), (2, 2.6, 0.05), (4, 1.5, 0.05), (8, 1.66, 0.07), (16, 1.7, 0.1))
"""Least images per class, and the beta and lambda that the authors use from there on for ImageNet."""
_MOST_ROWS = 3000


@dataclass(frozen=True)
class ProKeRSettings:
    """How many views are rows, and the candidates for beta and lambda.

    Attributes:
        views: augmented views of each image, A.
        betas, lambdas: candidates; ties go to the first beta, then to the first lambda. One of each is used as it is.
    """

    views: int = 10
    betas: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    lambdas: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)

    def __post_init__(self) -> None:
        if self.views < 1 or not self.betas or not self.lambdas:
            raise ValueError("views must be at least 1, and betas and lambdas must name a candidate")
        if min(self.betas) < 0 or min(self.lambdas) <= 0:
            raise ValueError("betas must not be negative, and lambdas must be positive")


class KernelRidge:
    """Kernel ridge regression of residuals for one beta; one decomposition serves every lambda.

    Attributes:
        residuals_nC: Y - g(S).
    """

    def __init__(self, rows_nD: Tensor, residuals_nC: Tensor, beta: float) -> None:
        self.residuals_nC = residuals_nC.double()
        self._values_n, self._vectors_nn = torch.linalg.eigh(kernel(rows_nD, rows_nD, beta))

    def coefficients(self, strength: float) -> Tensor:
        """Return a (n, C) for lambda = ``strength``."""
        return strength * self._solved(1 / (self._values_n + strength))

    def left_out(self, strength: float, groups: int) -> Tensor:
        """Return the correction (n, C) of every row from which its image's rows are removed.

        Row r is a view of image ``r % groups``. Without the rows B of an image, the corrections of these rows are
        ``lambda (R_B - inverse(M_BB) (M R)_B)`` with ``M = inverse(K + lambda I)``.
        """
        inverse_n = 1 / (self._values_n + strength)
        solved_nC = self._solved(inverse_n)
        rows = len(self._vectors_nn)
        images_NAn = self._vectors_nn.view(-1, groups, rows).transpose(0, 1)
        blocks_NAA = (images_NAn * inverse_n) @ images_NAn.mT
        own_NAC = torch.linalg.solve(blocks_NAA, solved_nC.view(-1, groups, solved_nC.shape[1]).transpose(0, 1))
        corrections_nC: Tensor = strength * (self.residuals_nC - own_NAC.transpose(0, 1).flatten(0, 1))
        return corrections_nC

    def _solved(self, inverse_n: Tensor) -> Tensor:
        solved_nC: Tensor = self._vectors_nn @ (inverse_n[:, None] * (self._vectors_nn.T @ self.residuals_nC))
        return solved_nC


def kernel(queries_BD: Tensor, rows_nD: Tensor, beta: float) -> Tensor:
    """Return k (B, n) of unit features, in float64."""
    return torch.exp(-beta * (1 - queries_BD.double() @ rows_nD.double().T))


def adapt(task: Task, settings: ProKeRSettings) -> Adapted:
    """Choose beta and lambda, and solve for the coefficients."""
    labels_N = task.support.labels_N.to(task.backbone.device)
    head_CD, images = task.head_CD.to(labels_N.device, torch.float32), len(labels_N)
    views = min(settings.views, max(1, _MOST_ROWS // images))
    rows_nD = torch.cat([unit_support_features(task, view) for view in range(1, views + 1)])
    labels_n = labels_N.repeat(views)
    residuals_nC = F.one_hot(labels_n, len(head_CD)).double() - rows_nD.double() @ head_CD.double().T
    beta, strength, search = _fixed(labels_N)
    held_out = unit_validation_features(task)
    if len(settings.betas) == len(settings.lambdas) == 1:
        beta, strength, search = settings.betas[0], settings.lambdas[0], "fixed"
    elif held_out is not None:
        queries_VD, labels_V = held_out
        text_VC = queries_VD.double() @ head_CD.double().T

        def correct_V(ridge: KernelRidge, beta: float, strength: float) -> int:
            added_VC = kernel(queries_VD, rows_nD, beta) @ ridge.coefficients(strength)
            return int(((text_VC + added_VC).argmax(dim=-1) == labels_V).sum())

        beta, strength = _best(settings, rows_nD, residuals_nC, correct_V)
        search = "validation images"
    elif images <= _MOST_ROWS and fewest_images(labels_N) > 1:
        text_nC = rows_nD.double() @ head_CD.double().T

        def correct_n(ridge: KernelRidge, beta: float, strength: float) -> int:
            return int(((text_nC + ridge.left_out(strength, images)).argmax(dim=-1) == labels_n).sum())

        beta, strength = _best(settings, rows_nD, residuals_nC, correct_n)
        search = "leave one out"
    coefficients_nC = KernelRidge(rows_nD, residuals_nC, beta).coefficients(strength).float()
    scale = task.backbone.logit_scale
    classifier = CacheClassifier(head_CD, rows_nD, coefficients_nC, scale, scale, beta)
    return Adapted(classifier, details={"beta": beta, "lambda": strength, "search": search})


def _fixed(labels_N: Tensor) -> tuple[float, float, str]:
    """Return the authors' pair for the smallest class's number of images, and why it is used."""
    fewest = fewest_images(labels_N)
    _, beta, strength = max(pair for pair in FIXED if pair[0] <= fewest)
    return beta, strength, NO_HOLD_OUT if fewest < 2 else "fixed: too many images to leave each out"


def _best(
    settings: ProKeRSettings,
    rows_nD: Tensor,
    residuals_nC: Tensor,
    correct: Callable[[KernelRidge, float, float], int],
) -> tuple[float, float]:
    """Return the first beta and lambda of the most correct predictions."""
    best = (-1, 0.0, 0.0)
    for beta in settings.betas:
        ridge = KernelRidge(rows_nD, residuals_nC, beta)
        for strength in settings.lambdas:
            if (hits := correct(ridge, beta, strength)) > best[0]:
                best = hits, beta, strength
    return best[1:]


register(
    name="proker",
    title="ProKeR",
    palette=38,
    summary="corrects the text head by kernel ridge regression on the support",
    paper="https://arxiv.org/abs/2501.11175",
    settings_class=ProKeRSettings,
    adapt=adapt,
    uses_validation=True,
    support_feature_views=lambda settings: settings.views,
    test_settings={"views": 2, "betas": (1.0, 2.0), "lambdas": (0.05, 0.1)},
)
