"""GDA: Gaussian discriminant analysis of the support, added to the text head, without training (Wang et al., 2024).

Paper: "A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation", ICLR 2024, arXiv:2402.04087. Every class is a
Gaussian in the space of unit features. All classes share one covariance and have equal priors::

    logits = scale f T^T + alpha (f W + b),    W = P mu^T,    b_c = -log C - 1/2 mu_c^T P mu_c
    P = D inverse((n - 1) S + tr(S) I)

mu_c is the mean feature of class c. S is the covariance of the n = A N features around their class means, where each of
A views of each of N images counts as a sample of its own. P is the shrunk inverse covariance of the official code. It
shrinks as 1 / n for large n, so the best alpha grows with the number of images.

The official code chooses alpha on a labelled validation split (on ImageNet: on the test split), as is done here under a
protocol that gives validation images. A few-shot task has none. Then alpha is chosen by leave-one-out on the support:
the un-augmented feature of each image is classified with its views removed from its class mean; P stays. Of equals the
smallest alpha is taken. The largest candidate is often chosen: there the Gaussian's logits are several times the
text's, and a larger alpha changes nothing.

If a class has a single image, removing it leaves no mean. Then alpha gives the Gaussian's logits ``one_shot_share`` of
the spread that the text's logits have, each as a standard deviation over the classes. P depends on the tower's width
and on how much an augmentation moves a feature, so no single alpha fits two towers. The median of the alphas in the
authors' published logs at k = 1 (1e-3, RN50) changes 0.2 points on the tiny tower. The share was chosen on eight drawn
datasets, with one training image of every class to learn from in sixteen draws, and the others held out. Mean accuracy
on these: 61.4 % zero-shot; 61.6, 62.0, 62.3, 62.4, 62.1 and 60.5 % with shares of 0.01, 0.05, 0.1, 0.2, 0.3 and 0.5.
0.1 is used, because it costs no dataset more than 1.1 points, and 0.2 costs two of them 2.6 and 2.7.

What else differs from the official code:

- It crops its views at a scale of 0.5 to 1. Here all methods share the same augmented views.
- The inverse is a Cholesky solution in float64. The official pseudo-inverse in float32 drops the directions of smallest
  variance if there are very many images.
- A class without an image gets the mean of the other classes' means, so the text alone tells such classes apart. The
  official code gives it NaN, and then predicts it for every image.

If the features have no variance around their class means (one image per class and one view), the result is the text
head alone, as in the official code.

Shape legend: N support images, n = A N samples, A views, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Method, register
from bolt.methods.common.cross_validation import NO_HOLD_OUT, fewest_images
from bolt.methods.common.frozen_features import unit_support_features, unit_validation_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task

ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""The official candidates for alpha."""
_NO_VARIANCE = 1e-12
"""A total variance of unit features below this is rounding error of float32."""


@dataclass(frozen=True)
class GdaSettings:
    """How many views are read, and how alpha is chosen.

    Attributes:
        views: augmented views of each image, A; each view is a sample.
        alpha: weight of the Gaussian's logits; by default it is chosen by leave-one-out on the support.
        one_shot_share: if a class has a single image, so that none can be left out: the spread of the Gaussian's logits
            over the classes, as a share of that of the text's logits.
    """

    views: int = 10
    alpha: float | None = None
    one_shot_share: float = 0.1

    def __post_init__(self) -> None:
        if self.views < 1:
            raise ValueError(f"views must be at least 1, not {self.views}")
        if self.one_shot_share < 0 or (self.alpha is not None and self.alpha < 0):
            raise ValueError("alpha and one_shot_share must not be negative")


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Gaussians with equal priors and a shared precision matrix; tensors are in float64.

    Attributes:
        means_CD: the mean of each class.
        precision_DD: the shrunk inverse covariance, P; zero if the features have no variance.
    """

    means_CD: Tensor
    precision_DD: Tensor

    def weight(self) -> Tensor:
        """Return the transposed weight W^T of the linear classifier, (C, D)."""
        return self.means_CD @ self.precision_DD

    def bias(self) -> Tensor:
        """Return the bias b of the linear classifier, (C,)."""
        classes = len(self.means_CD)
        energy_C = (self.weight() * self.means_CD).sum(dim=-1)
        return -torch.tensor(float(classes)).log().to(energy_C) - 0.5 * energy_C


def fit_gaussians(samples_nD: Tensor, labels_n: Tensor, classes: int) -> Gaussians:
    """Fit the class means and the shared precision to unit features. Classes without samples get the mean of means."""
    samples_nD = samples_nD.double()
    onehot_nC = F.one_hot(labels_n, classes).to(samples_nD)
    counts_C1 = onehot_nC.sum(dim=0)[:, None]
    means_CD = onehot_nC.T @ samples_nD / counts_C1.clamp_min(1)
    seen_C = counts_C1.squeeze(-1) > 0
    means_CD[~seen_C] = means_CD[seen_C].mean(dim=0)
    residuals_nD = samples_nD - means_CD[labels_n]
    scatter_DD = residuals_nD.T @ residuals_nD
    trace, width = float(scatter_DD.trace()) / max(len(samples_nD) - 1, 1), samples_nD.shape[1]
    identity_DD = torch.eye(width).to(scatter_DD)
    if trace < _NO_VARIANCE:
        return Gaussians(means_CD, torch.zeros_like(identity_DD))
    factor_DD = torch.linalg.cholesky(scatter_DD + trace * identity_DD)
    return Gaussians(means_CD, width * torch.cholesky_inverse(factor_DD))


def leave_one_out_logits(gaussians: Gaussians, samples_AND: Tensor, queries_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return ``f W + b`` of every image (N, C), with all its views removed from the mean of its class.

    Args:
        samples_AND: unit features of A views of N images, from which ``gaussians`` were fitted.
        queries_ND: unit features of the un-augmented images.
    """
    queries_ND, samples_AND = queries_ND.double(), samples_AND.double()
    logits_NC = queries_ND @ gaussians.weight().T + gaussians.bias()
    views = len(samples_AND)
    images_C = F.one_hot(labels_N, len(gaussians.means_CD)).sum(dim=0).double()
    others_N1 = images_C[labels_N][:, None] - 1
    sums_ND = gaussians.means_CD[labels_N] * (others_N1 + 1) * views - samples_AND.sum(dim=0)
    own = Gaussians(sums_ND / (others_N1 * views), gaussians.precision_DD)
    constant = gaussians.bias() + 0.5 * (gaussians.weight() * gaussians.means_CD).sum(dim=-1)
    energy_N = (own.weight() * own.means_CD).sum(dim=-1)
    own_N = (own.weight() * queries_ND).sum(dim=-1) - 0.5 * energy_N + constant[labels_N]
    return logits_NC.scatter(1, labels_N[:, None], own_N[:, None])


def best_alpha(text_NC: Tensor, gaussian_NC: Tensor, labels_N: Tensor) -> float:
    """Return the alpha with which ``text + alpha gaussian`` is most accurate; ties go to the smallest."""
    logits = (text_NC.double() + alpha * gaussian_NC.double() for alpha in ALPHAS)
    correct = [int((each_NC.argmax(dim=-1) == labels_N).sum()) for each_NC in logits]
    return ALPHAS[correct.index(max(correct))]


def alpha_of_share(text_NC: Tensor, gaussian_NC: Tensor, share: float) -> float:
    """Return the alpha at which the Gaussian's logits spread over the classes by this share of the text's.

    The spread is the standard deviation over the classes, as a mean over the images. 0 if the Gaussian has none, or if
    there is a single class.
    """
    text, gaussian = (float(logits.double().std(dim=1, correction=0).mean()) for logits in (text_NC, gaussian_NC))
    return share * text / gaussian if gaussian > 0 else 0.0


def adapt(task: Task, settings: GdaSettings) -> Adapted:
    """Fit the Gaussians, choose alpha, and add their linear classifier to the text head."""
    scale, device = task.backbone.logit_scale, task.backbone.device
    head_CD, labels_N = task.head_CD.to(device, torch.float32), task.support.labels_N.to(device)
    samples_AND = torch.stack([unit_support_features(task, view) for view in range(1, settings.views + 1)])
    gaussians = fit_gaussians(samples_AND.flatten(0, 1), labels_N.repeat(settings.views), len(head_CD))
    alpha, chosen = settings.alpha, "fixed"
    if alpha is None:
        queries_ND = unit_support_features(task, EVALUATION_VIEW)
        text_NC = scale * queries_ND @ head_CD.T
        if (held_out := unit_validation_features(task)) is not None:
            queries_VD, labels_V = held_out
            gaussian_VC = queries_VD.double() @ gaussians.weight().T + gaussians.bias()
            alpha, chosen = best_alpha(scale * queries_VD @ head_CD.T, gaussian_VC, labels_V), "validation images"
        elif fewest_images(labels_N) < 2:
            gaussian_NC = queries_ND.double() @ gaussians.weight().T + gaussians.bias()
            alpha, chosen = alpha_of_share(text_NC, gaussian_NC, settings.one_shot_share), NO_HOLD_OUT
        else:
            gaussian_NC = leave_one_out_logits(gaussians, samples_AND, queries_ND, labels_N)
            alpha, chosen = best_alpha(text_NC, gaussian_NC, labels_N), "leave one out"
    weight_CD = scale * head_CD.double() + alpha * gaussians.weight()
    classifier = LinearClassifier(weight_CD.float(), (alpha * gaussians.bias()).float())
    return Adapted(classifier, details={"alpha": alpha, "search": chosen})


register(
    Method(
        name="gda",
        title="GDA",
        palette=17,
        summary="adds a Gaussian discriminant with one covariance to the text head",
        paper="https://arxiv.org/abs/2402.04087",
        settings_class=GdaSettings,
        adapt=adapt,
        uses_validation=True,
        version=2,
        support_feature_views=lambda settings: settings.views,
        test_settings={"views": 3},
    )
)
