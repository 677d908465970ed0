"""ProKeR: corrects the text head by kernel ridge regression, without training (Bendou et al., CVPR 2025).

Paper: arXiv:2501.11175. The rows S are the unit features of A views of each support image, and Y their labels. The text
head without its scale, g(f) = f T^T, is corrected by a kernel k(f, f') = exp(-beta (1 - f . f'))::

    h(f) = g(f) + k(f, S) a,    a = inverse(K / lambda + I) (Y - g(S))

As in the authors' code, the correction is lambda times the correction of textbook kernel ridge regression. The smaller
lambda is, the nearer h is to the text head. For an infinite lambda, the correction is a plain sum of kernels. What
differs from the authors' code:

- beta and lambda are chosen by leave-one-out, in closed form. Each image is predicted without any of its views.
  The authors choose on a labelled validation split. If the protocol gives validation images, they are used here too.
  If a class has a single image, or there are more than 3,000 images, beta and lambda are the values that the authors
  give for ImageNet with as many images per class.
- There are at most 3,000 rows, because the time of a solution grows with the cube of their number. A large support has
  fewer views of each image.
- The logits are multiplied by CLIP's scale, so that their softmax gives probabilities.

Shape legend: N images, n = A N rows, A views, B queries, V validation images, C classes, D joint embedding width.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.cross_validation import NO_HOLD_OUT, fewest_images
from bolt.methods.common.frozen_features import unit_support_features, unit_validation_features
from bolt.task.classifiers import CacheClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import NOT_EMPTY, AtLeast1, Checked, NotNegative, Positive

FIXED = ((1, 3.0, 0.05), (2, 2.6, 0.05), (4, 1.5, 0.05), (8, 1.66, 0.07), (16, 1.7, 0.1))
"""The authors' values for ImageNet: triples (images per class, beta, lambda). If the smallest class has m images, the
last triple with at most m images is used."""
_MOST_ROWS = 3000


@dataclass(frozen=True)
class ProKeRSettings(Checked):
    """How many views are rows, and the candidates for beta and lambda.

    Attributes:
        views: augmented views of each image, A.
        betas, lambdas: candidates; ties go to the first beta, then to the first lambda. A single pair is used without a
            search.
    """

    views: AtLeast1 = 10
    betas: Annotated[tuple[NotNegative, ...], NOT_EMPTY] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    lambdas: Annotated[tuple[Positive, ...], NOT_EMPTY] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class KernelRidge:
    """Kernel ridge regression of residuals for one beta. One decomposition of the kernel matrix serves every lambda.

    Attributes:
        residuals_nC: Y - g(S): the one-hot labels of the rows, minus the cosines of the rows to the text head.
    """

    def __init__(self, rows_nD: Tensor, residuals_nC: Tensor, beta: float) -> None:
        self.residuals_nC = residuals_nC.double()
        self._values_n, self._vectors_nn = torch.linalg.eigh(kernel(rows_nD, rows_nD, beta))

    def coefficients(self, strength: float) -> Tensor:
        """Return the coefficients a (n, C) for lambda = ``strength``."""
        return strength * self._solved(1 / (self._values_n + strength))

    def left_out(self, strength: float, groups: int) -> Tensor:
        """Return the correction (n, C) of every row. An image's rows are corrected by a regression without these rows.

        Row r is a view of image ``r % groups``. The corrections of an image's rows B are ``lambda (R_B - inverse(M_BB)
        (M R)_B)`` with the residuals R and ``M = inverse(K + lambda I)``.
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
    """Return the kernel k (B, n) between unit features, in float64."""
    return torch.exp(-beta * (1 - queries_BD.double() @ rows_nD.double().T))


@register(
    title="ProKeR",
    palette=38,
    summary="corrects the text head by kernel ridge regression on the support",
    paper="https://arxiv.org/abs/2501.11175",
    uses_validation=True,
    support_feature_views=lambda settings: settings.views,
)
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
    elif held_out is not None or (images <= _MOST_ROWS and fewest_images(labels_N) > 1):
        queries_BD, labels_B = held_out or (rows_nD, labels_n)
        text_BC = queries_BD.double() @ head_CD.double().T
        correct: dict[tuple[float, float], int] = {}
        for beta in settings.betas:
            ridge = KernelRidge(rows_nD, residuals_nC, beta)
            for strength in settings.lambdas:
                if held_out is None:
                    added_BC = ridge.left_out(strength, images)
                else:
                    added_BC = kernel(queries_BD, rows_nD, beta) @ ridge.coefficients(strength)
                correct[beta, strength] = int(((text_BC + added_BC).argmax(dim=-1) == labels_B).sum())
        beta, strength = max(correct, key=correct.__getitem__)  # ties go to the first pair
        search = "leave one out" if held_out is None else "validation images"
    coefficients_nC = KernelRidge(rows_nD, residuals_nC, beta).coefficients(strength).float()
    scale = task.backbone.logit_scale
    classifier = CacheClassifier(head_CD, rows_nD, coefficients_nC, scale, scale, beta)
    return Adapted(classifier, details={"beta": beta, "lambda": strength, "search": search})


def _fixed(labels_N: Tensor) -> tuple[float, float, str]:
    """Return the authors' beta and lambda for the number of images of the smallest class, and the reason in words."""
    fewest = fewest_images(labels_N)
    _, beta, strength = max(pair for pair in FIXED if pair[0] <= fewest)
    return beta, strength, NO_HOLD_OUT if fewest < 2 else "fixed: too many images to leave each out"
