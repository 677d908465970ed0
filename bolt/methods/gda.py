"""GDA: Gaussian discriminant analysis of the support, added to the text head, without training (Wang et al., 2024).

Paper: "A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation", ICLR 2024, arXiv:2402.04087. Every class is a
Gaussian in the space of unit features. All classes share one covariance and have equal priors::

    logits = scale f T^T + alpha (f W + b),    W = P mu^T,    b_c = -log C - 1/2 mu_c^T P mu_c
    P = D inverse((n - 1) S + tr(S) I)

mu_c is the mean feature of class c. S is the covariance of the n = A N features around their class means, where each of
A views of each of N images is one sample. P is the shrunk inverse covariance of the official code. P shrinks as 1 / n
for large n, so the best alpha grows with the number of images.

The official code chooses alpha on a labelled validation split (on ImageNet: on the test split). If the protocol gives
validation images, alpha is chosen on them here too. Otherwise alpha is chosen by leave-one-out on the support. The
un-augmented feature of each image is classified by Gaussians that were fitted without its views. Ties go to the
smallest alpha.

With two images per class, the left-out image's class keeps one image, and every other class keeps two. So
leave-one-out chooses too small an alpha. If the means are fitted without the image, but P with it, the chosen alpha is
too large. So with two images per class, alpha maximises the sum of the two counts of correctly classified images.

The list gives the mean gain over zero-shot in points, and in brackets the smallest gain on any dataset with any draw of
the support. The gains were measured on fifteen datasets of drawn pictures, on training images outside the support, with
one prompt. The numbers of a line are for k = 2 and 4 (three draws of the support) and k = 8 (one draw):

- P fitted without the image: 11.5 (-12), 21.2 (-1), 26.9 (0)
- P fitted with the image: 12.4 (-32), 21.1 (-16), 26.1 (-7)
- the two counts added up: 14.1 (-20), 21.0 (-16), 26.4 (-8)

With CLIP's own features, and P fitted with the image at every k, accuracy on Pets is 2 to 14 points below zero-shot.

If a class has a single image, removing it leaves no mean. Then alpha is set so that the spread of the Gaussian's logits
over the classes is ``one_shot_share`` times the spread of the text's logits. A spread is a standard deviation. P
depends on the tower's width and on how much an augmentation moves a feature, so no single alpha fits two towers. For
example, the median alpha in the authors' published logs at k = 1 (1e-3, RN50) changes the accuracy of the demo's tiny
tower by 0.2 points only.

The share was chosen on eight datasets of drawn pictures, with sixteen draws of a support of one training image per
class, and the other training images held out. Mean accuracy on these: 61.4 % zero-shot; 61.6, 62.0, 62.3, 62.4, 62.1
and 60.5 % with shares of 0.01, 0.05, 0.1, 0.2, 0.3 and 0.5. The share is 0.1, because no dataset then loses more than
1.1 points. With 0.2, two datasets lose 2.6 and 2.7 points.

What else differs from the official code:

- The official views are crops at a scale of 0.5 to 1. Here all methods share the same augmented views.
- The inverse is a Cholesky solution in float64. The official pseudo-inverse in float32 drops the directions of smallest
  variance if there are very many images.
- A class without an image gets the mean of the other classes' means, so that only the text tells such classes apart. In
  the official code the logits of such a class are NaN, and it is predicted for every image.

If the features have no variance around their class means (one image per class and one view), the result is the text
head alone, as in the official code.

Shape legend: N support images, B a block of them, n = A N samples, A views, Z = A + 1, C classes, D joint embedding
width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, register
from bolt.methods.common.cross_validation import NO_HOLD_OUT, fewest_images
from bolt.methods.common.frozen_features import unit_support_features, unit_validation_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative

ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""The official candidates for alpha."""
_ENOUGH = 3
"""If a class has fewer images than this, leave-one-out is done twice: with P fitted without the image, and with P
fitted to all images."""
_NUMBERS = 2**23
"""Leave-one-out takes the images in blocks. The tensors of a block hold about this many numbers (64 MiB)."""
_NO_VARIANCE = 1e-12
"""A total variance of unit features below this is rounding error of float32."""


@dataclass(frozen=True)
class GdaSettings(Checked):
    """How many views are read, and how alpha is chosen.

    Attributes:
        views: augmented views of each image, A; each view is a sample.
        alpha: weight of the Gaussian's logits; by default it is chosen on validation images if the protocol gives any,
            otherwise on the support.
        one_shot_share: alpha is set so that the spread of the Gaussian's logits is this share of the spread of the
            text's logits. It is used if there are no validation images and a class has a single image, because
            leave-one-out would leave such a class without an image.
    """

    views: AtLeast1 = 10
    alpha: NotNegative | None = None
    one_shot_share: NotNegative = 0.1


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
    """Fit class means and the shared precision to unit features.

    A class without samples gets the mean of the other classes' means.
    """
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


def leave_one_out_logits(
    gaussians: Gaussians, samples_AND: Tensor, queries_ND: Tensor, labels_N: Tensor, *, keep_precision: bool
) -> Tensor:
    """Return the logits ``f W + b`` (N, C) of the images. Each image's Gaussians are fitted without that image.

    No image needs a decomposition of its own. In the eigenvectors of the scatter matrix of all images, the precision
    without an image is a diagonal matrix plus a correction of rank A + 1: the image's residuals and the shift of its
    class mean.

    Args:
        samples_AND: unit features of A views of N images, from which ``gaussians`` were fitted.
        queries_ND: unit features of the un-augmented images.
        keep_precision: whether only the means are fitted without the image, and the precision with all images.
    """
    views, images, width = samples_AND.shape
    kept = views * (images - (not keep_precision))  # number of samples to which P is fitted
    classes, others_N = len(gaussians.means_CD), views * (labels_N.bincount()[labels_N] - 1).double()
    residuals_nD = (samples_AND.double() - gaussians.means_CD[labels_N]).flatten(0, 1)
    spread_D, rotation_DD = torch.linalg.eigh(residuals_nD.T @ residuals_nD)
    means_CD, logits = gaussians.means_CD @ rotation_DD, []
    block = max(1, _NUMBERS // ((views + 1) * (classes + width)))
    for rows_B in torch.split(torch.arange(images, device=labels_N.device), block):
        others_B1, own_B, each_B = others_N[rows_B, None], labels_N[rows_B], torch.arange(len(rows_B))
        residuals_BAD = residuals_nD.view(views, images, width)[:, rows_B].transpose(0, 1) @ rotation_DD
        shift_BD = residuals_BAD.sum(dim=1)
        own_BD = means_CD[own_B] - shift_BD / others_B1  # the class mean without the image
        correction_BZD = torch.cat([residuals_BAD, (shift_BD / others_B1.sqrt())[:, None]], dim=1)
        out_BZD = correction_BZD[:, :0] if keep_precision else correction_BZD
        trace_B = (spread_D.sum() - out_BZD.square().sum(dim=(1, 2))) / max(kept - 1, 1)
        inverse_BD = torch.where(trace_B[:, None] < _NO_VARIANCE, 0.0, 1 / (spread_D + trace_B[:, None]))
        query_BD, scaled_BZD = (queries_ND[rows_B].double() @ rotation_DD) * inverse_BD, out_BZD * inverse_BD[:, None]
        match_BC, energy_BC = query_BD @ means_CD.T, inverse_BD @ means_CD.T.square()
        inner_BZC = scaled_BZD @ means_CD.T
        match_BC[each_B, own_B] = (query_BD * own_BD).sum(dim=-1)
        energy_BC[each_B, own_B] = (inverse_BD * own_BD.square()).sum(dim=-1)
        inner_BZC[each_B, :, own_B] = (scaled_BZD @ own_BD[..., None])[..., 0]
        solved_BZC = torch.linalg.solve(torch.eye(out_BZD.shape[1]).to(out_BZD) - scaled_BZD @ out_BZD.mT, inner_BZC)
        match_BC += (query_BD[:, None] @ out_BZD.mT @ solved_BZC)[:, 0]
        energy_BC += (inner_BZC * solved_BZC).sum(dim=1)
        logits.append(width * (match_BC - 0.5 * energy_BC) - math.log(classes))
    return torch.cat(logits)


def best_alpha(text_NC: Tensor, gaussians_NC: Sequence[Tensor], labels_N: Tensor) -> float:
    """Return the alpha of ``ALPHAS`` with which ``text + alpha gaussian`` classifies the most images correctly.

    Ties go to the smallest alpha.

    Args:
        gaussians_NC: logits of one or several Gaussian classifiers. Their numbers of correct images are added up.
    """

    def correct(alpha: float) -> int:
        classified = ((text_NC.double() + alpha * each_NC.double()).argmax(dim=-1) for each_NC in gaussians_NC)
        return sum(int((predicted_N == labels_N).sum()) for predicted_N in classified)

    return max(ALPHAS, key=correct)


def alpha_of_share(text_NC: Tensor, gaussian_NC: Tensor, share: float) -> float:
    """Return the alpha for which the spread of ``alpha * gaussian_NC`` is ``share`` times the spread of ``text_NC``.

    The spread of logits is their standard deviation over the classes, averaged over the images. Return 0 if the spread
    of ``gaussian_NC`` is zero, or if there is a single class.
    """
    text, gaussian = (float(logits.double().std(dim=1, correction=0).mean()) for logits in (text_NC, gaussian_NC))
    return share * text / gaussian if gaussian > 0 else 0.0


@register(
    title="GDA",
    palette=17,
    summary="adds a Gaussian discriminant with one covariance to the text head",
    paper="https://arxiv.org/abs/2402.04087",
    uses_validation=True,
    version=3,
    support_feature_views=lambda settings: settings.views,
    idle=(Idle(("one_shot_share",), {"alpha": None}),),
)
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
            alpha, chosen = best_alpha(scale * queries_VD @ head_CD.T, [gaussian_VC], labels_V), "validation images"
        elif fewest_images(labels_N) < 2:
            gaussian_NC = queries_ND.double() @ gaussians.weight().T + gaussians.bias()
            alpha, chosen = alpha_of_share(text_NC, gaussian_NC, settings.one_shot_share), NO_HOLD_OUT
        else:
            keeps_too = (False, True) if fewest_images(labels_N) < _ENOUGH else (False,)
            left_out = [
                leave_one_out_logits(gaussians, samples_AND, queries_ND, labels_N, keep_precision=keep)
                for keep in keeps_too
            ]
            alpha, chosen = best_alpha(text_NC, left_out, labels_N), "leave one out"
    weight_CD = scale * head_CD.double() + alpha * gaussians.weight()
    classifier = LinearClassifier(weight_CD.float(), (alpha * gaussians.bias()).float())
    return Adapted(classifier, details={"alpha": alpha, "search": chosen})
