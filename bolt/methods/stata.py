"""StatA: classifies all test images together, by Gaussian classes anchored to the text (Zanella et al., CVPR 2025).

Paper: arXiv:2501.03729. As in TransCLIP, all test images are classified together: z are their class probabilities, mu
the means of the classes, and W links each image to the 3 nearest other images. Here every class has a variance v_c of
its own. The mean and the variance of a class with few images stay near the text::

    L_ic = -1/2 sum_d (f_id - mu_cd)^2 / v_cd - 1/2 sum_d log v_cd
    z <- softmax(log y + L / 50 + (W z + W^T z) / 6),    five times in each of eleven rounds
    beta_c = n_c / (1 + n_c),    mu_c = unit(beta_c unit(sum z f) + (1 - beta_c) t_c)
    v_c = beta_c (mean of (f - mu_c)^2 under z) + (1 - beta_c) (v_0 + (t_c - mu_c)^2)

y are the zero-shot probabilities, and n_c counts the images that z gives to c. v_0 is the variance of the features
around the text embeddings, weighted by y. What differs from the official code:

- v_0 is divided by n once. The official code does so once for every 2,500 images, so that v_0 is too small for more
  than 2,500 test images.
- A class of probability zero keeps the text as its mean. The official code gives NaN.

Shape legend: n test images, C classes, D joint embedding width, J neighbours.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.frozen_features import unit_test_features
from bolt.methods.trans_clip import LIKELIHOOD_DIVISOR, MIN_VARIANCE, MIN_WEIGHT, nearest_others, update_labels
from bolt.task.classifiers import TransductiveClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative


@dataclass(frozen=True)
class StatASettings(Checked):
    """The official settings, which are the same for every dataset.

    Attributes:
        anchor: the text of a class weighs as much as this many images. It is the 1 in ``n_c / (1 + n_c)``.
        soft_counts: whether the size n_c of a class is a sum of probabilities instead of a number of images.
        neighbours: number of nearest images that an image is linked to.
        rounds: number of rounds. Each updates the class probabilities, then the means and the variances; the last one
            updates the probabilities alone.
    """

    anchor: NotNegative = 1.0
    soft_counts: bool = False
    neighbours: AtLeast1 = 3
    rounds: AtLeast1 = 11


@dataclass(frozen=True, eq=False)
class Anchored:
    """Class probabilities of the test images, and the Gaussian classes, in float64.

    Attributes:
        z_nC: class probabilities.
        means_CD, variances_CD: the mean and the variance of each class.
        beta_C: weight of the images in each class; the text has the weight ``1 - beta_C``.
    """

    z_nC: Tensor
    means_CD: Tensor
    variances_CD: Tensor
    beta_C: Tensor


def quadratic(means_CD: Tensor, variances_CD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-likelihood L as a quadratic function of f: weights (C, D) of f^2 and of f, and constants (C,)."""
    inverse_CD = 1 / variances_CD
    constant_C = -0.5 * ((means_CD.square() * inverse_CD).sum(dim=-1) + variances_CD.log().sum(dim=-1))
    return -0.5 * inverse_CD, means_CD * inverse_CD, constant_C


def start(unit_nD: Tensor, head_CD: Tensor, scale: float) -> Anchored:
    """Return the start of the rounds: zero-shot probabilities, the text as means, the variance v_0 around the text."""
    unit_nD, head_CD = unit_nD.double(), head_CD.double()
    y_nC = (scale * unit_nD @ head_CD.T).softmax(dim=-1)
    mass_C = y_nC.sum(dim=0)
    squares_D = unit_nD.square().sum(dim=0) + mass_C @ head_CD.square() - 2 * ((y_nC.T @ unit_nD) * head_CD).sum(dim=0)
    variance_D = (squares_D / len(unit_nD)).clamp_min(MIN_VARIANCE)
    return Anchored(y_nC, head_CD, variance_D.expand_as(head_CD), torch.zeros_like(mass_C))


def transduce(unit_nD: Tensor, head_CD: Tensor, scale: float, settings: StatASettings) -> Anchored:
    """Return the solution after ``settings.rounds`` rounds. The last round updates the probabilities alone."""
    unit_nD, head_CD = unit_nD.double(), head_CD.double()
    log_prior_nC = (scale * unit_nD @ head_CD.T).log_softmax(dim=-1)
    now = start(unit_nD, head_CD, scale)
    variance_D = now.variances_CD[0]
    cosines_nJ, nearest_nJ = nearest_others(unit_nD, settings.neighbours)
    for number in range(settings.rounds):
        squares_CD, linear_CD, constant_C = quadratic(now.means_CD, now.variances_CD)
        likelihood_nC = unit_nD.square() @ squares_CD.T + unit_nD @ linear_CD.T + constant_C
        own_nC = log_prior_nC + likelihood_nC / LIKELIHOOD_DIVISOR
        now = replace(now, z_nC=update_labels(own_nC, now.z_nC, cosines_nJ, nearest_nJ))
        if number + 1 < settings.rounds:
            now = _gaussians(unit_nD, now.z_nC, head_CD, variance_D, settings)
    return now


def _gaussians(unit_nD: Tensor, z_nC: Tensor, head_CD: Tensor, variance_D: Tensor, settings: StatASettings) -> Anchored:
    mass_C, sums_CD = z_nC.sum(dim=0), z_nC.T @ unit_nD
    count_C = mass_C if settings.soft_counts else z_nC.argmax(dim=-1).bincount(minlength=len(head_CD)).to(mass_C)
    share_C = count_C / (settings.anchor + count_C).clamp_min(MIN_WEIGHT)
    beta_C1 = torch.where(mass_C > MIN_WEIGHT, share_C, 0)[:, None]
    means_CD = F.normalize(beta_C1 * F.normalize(sums_CD, dim=-1, eps=1e-30) + (1 - beta_C1) * head_CD, dim=-1)
    # The square is expanded, so that no (n, C, D) tensor is made.
    around_CD = (z_nC.T @ unit_nD.square() - 2 * means_CD * sums_CD) / mass_C[:, None].clamp_min(MIN_WEIGHT)
    around_CD = around_CD + means_CD.square()
    anchor_CD = variance_D + (head_CD - means_CD).square()
    variances_CD = (beta_C1 * around_CD + (1 - beta_C1) * anchor_CD).clamp_min(MIN_VARIANCE)
    return Anchored(z_nC, means_CD, variances_CD, beta_C1[:, 0])


@register(
    title="StatA",
    palette=41,
    summary="classifies all test images together, by Gaussian classes that are anchored to the text",
    paper="https://arxiv.org/abs/2501.03729",
    tracks=frozenset({"tta"}),
)
def adapt(task: Task, settings: StatASettings) -> Adapted:
    """Classify the unlabelled test images together. Raises ``ValueError`` if the task has none."""
    unit_nD = unit_test_features(task)
    head_CD, scale = task.head_CD.to(unit_nD), task.backbone.logit_scale
    solved = transduce(unit_nD, head_CD, scale, settings)
    changed = (solved.z_nC.argmax(dim=-1) != (unit_nD @ head_CD.T).argmax(dim=-1)).double().mean()
    parts = quadratic(solved.means_CD, solved.variances_CD)
    squares_CD, linear_CD, constant_C = (part / LIKELIHOOD_DIVISOR for part in parts)
    weight_CD, neighbours = (scale * head_CD.double() + linear_CD).float(), float(settings.neighbours)
    classifier = TransductiveClassifier(
        weight_CD, constant_C.float(), unit_nD, solved.z_nC.float(), neighbours, squares_CD.float()
    )
    return Adapted(classifier, details={"changed_predictions": 100 * float(changed)})
