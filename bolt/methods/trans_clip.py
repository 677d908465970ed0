"""TransCLIP: all test images are classified together, by Gaussian classes and neighbours (Zanella et al., 2024).

Paper: "Boosting Vision-Language Models with Transduction", NeurIPS 2024, arXiv:2406.01837, equation 5 and its block
updates. Nothing is trained by gradients. Class probabilities z_i of the n test images, class means mu_c and one
diagonal variance v are updated in turns, ``rounds`` times::

    z_i ~ yhat_i^lambda exp(L_i / 50 + 1/6 sum_j (W_ij + W_ji) z_j),    L_ic = -1/2 sum_d (f_id - mu_cd)^2 / v_d
    mu_c = normalise(sum_i z_ic f_i / sum_i z_ic),    v = sum_ic z_ic (f_i - mu_c)^2 / sum_ic z_ic

yhat is the zero-shot softmax and does not change. W links every image to the 3 nearest other images; the weight of a
link is the cosine. z is updated 5 times per round, for all images at once. At the start, z = yhat and v = 1 / D. mu_c
starts at the mean of the 8 images of highest z_ic, weighted by z_ic. No number depends on labels, and the official
numbers are used for every dataset.

Few-shot form: the task has labelled support images beside the test images. The support images keep their labels as z,
mu_c starts at the mean of class c's support images, and lambda is 0.5. In mu and v, all support images together have
the weight ``50 gamma``, and all test images together have the weight 1. W also links a support image to its 3 nearest
test images, and so passes its label to them. The benchmark's tracks give a method either labelled or test images, so
only users of the library reach this form. The official code tries gamma = 0.002, 0.01, 0.02 and 0.2 on labelled
validation images. Here gamma is 0.02, which gives support and test images the same weight.

The official code's few-shot form has three mistakes, which are not repeated here:

- The four gammas run one after another, each from the previous result.
- W and z hold support and test images in opposite orders, so an image gets the probabilities of other images.
- The nearest test image of a support image is dropped, as if it were the image itself. The setting ``skip_nearest``
  repeats this mistake.

The classifier that the method returns gives a test image its z. It scores any other image by the same formula. A class
whose probabilities become zero keeps its mean. A variance is at least 1e-12.

Shape legend: n test images, N support images, M = n + N, C classes, D joint embedding width, J neighbours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, register
from bolt.methods.common.frozen_features import unit_support_features, unit_test_features
from bolt.task.classifiers import TransductiveClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative

_INNER_UPDATES = 5
_START_IMAGES = 8
LIKELIHOOD_DIVISOR, _NEIGHBOUR_DIVISOR = 50.0, 6.0
MIN_VARIANCE, MIN_WEIGHT = 1e-12, 1e-12
_BLOCK = 1024
"""How many images' cosines with all other images are in memory at once."""


@dataclass(frozen=True)
class TransClipSettings(Checked):
    """The weights of the text and of the support; the defaults are the official ones.

    Attributes:
        text_weight: lambda, the exponent of the zero-shot probabilities; by default 1, or 0.5 with a support.
        gamma: weight of the support: all support images together weigh ``50 gamma`` times as much as the test images.
            No track gives a support to this method, so ``gamma`` and ``skip_nearest`` have an effect in a task of your
            own only.
        neighbours: number of nearest images that an image is linked to.
        rounds: number of rounds. Each updates the class probabilities, then the means and the variance; the last one
            updates the probabilities alone.
        skip_nearest: link a support image to its second to fourth nearest test images, as the official code does.
    """

    text_weight: NotNegative | None = None
    gamma: NotNegative = 0.02
    neighbours: AtLeast1 = 3
    rounds: AtLeast1 = 11
    skip_nearest: bool = False

    def exponent(self, with_support: bool) -> float:
        """Return lambda, the exponent of the zero-shot probabilities, for a task with or without a support."""
        return (0.5 if with_support else 1.0) if self.text_weight is None else self.text_weight


@dataclass(frozen=True, eq=False)
class Labelled:
    """The support images, which the few-shot form of the method adds to the test images.

    Attributes:
        unit_ND: unit features.
        onehot_NC: labels.
        weight: weight of one support image in the sums; all test images together have weight 1.
    """

    unit_ND: Tensor
    onehot_NC: Tensor
    weight: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Class probabilities of the test images, and the Gaussian classes.

    Attributes:
        z_nC: class probabilities.
        means_CD, variance_D: the means of the classes, and the variance that they share.
    """

    z_nC: Tensor
    means_CD: Tensor
    variance_D: Tensor


def nearest_others(unit_nD: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and indices (n, J) of the other images nearest to each image; J is at most n - 1."""
    count = min(neighbours, len(unit_nD) - 1)
    cosines, numbers = [], []
    for start in range(0, len(unit_nD), _BLOCK):
        block = unit_nD[start : start + _BLOCK] @ unit_nD.T
        rows = torch.arange(len(block), device=block.device)
        block[rows, rows + start] = -torch.inf
        found = block.topk(count, dim=-1)
        cosines.append(found.values)
        numbers.append(found.indices)
    return torch.cat(cosines), torch.cat(numbers)


def nearest_test_images(support_ND: Tensor, unit_nD: Tensor, neighbours: int, skipped: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and indices (N, J) of the test images nearest to each support image; J is at most n - 1.

    The ``skipped`` nearest test images are left out, or fewer if less than J would remain.
    """
    count = min(neighbours, len(unit_nD) - 1)
    found = (support_ND @ unit_nD.T).topk(min(count + skipped, len(unit_nD)), dim=-1)
    kept = slice(found.values.shape[1] - count, None)
    return found.values[:, kept], found.indices[:, kept]


def update_labels(
    own_nC: Tensor, z_nC: Tensor, cosines_MJ: Tensor, nearest_MJ: Tensor, onehot_NC: Tensor | None = None
) -> Tensor:
    """Return z after five updates ``z <- softmax(own + (W z + W^T z) / 6)``.

    Args:
        own_nC: the logits of each test image without its neighbours.
        z_nC: class probabilities of the test images.
        cosines_MJ, nearest_MJ: links of the test images, followed by those of the support images.
        onehot_NC: the labels of the support images.
    """
    own = slice(len(z_nC))
    for _ in range(_INNER_UPDATES):
        z_MC = z_nC if onehot_NC is None else torch.cat([z_nC, onehot_NC])
        votes_nC = (cosines_MJ[own, :, None] * z_nC[nearest_MJ[own]]).sum(dim=1)
        sent_MJC = cosines_MJ[:, :, None] * z_MC[:, None, :]
        votes_nC.index_add_(0, nearest_MJ.flatten(), sent_MJC.flatten(0, 1))
        z_nC = (own_nC + votes_nC / _NEIGHBOUR_DIVISOR).softmax(dim=-1)
    return z_nC


def log_likelihood(unit_nD: Tensor, means_CD: Tensor, variance_D: Tensor) -> Tensor:
    """Return L (n, C), ``-1/2 sum_d (f_id - mu_cd)^2 / v_d``, for image i and class c."""
    scaled_CD = means_CD / variance_D
    squares_n1 = (unit_nD.square() / variance_D).sum(dim=-1, keepdim=True)
    return unit_nD @ scaled_CD.T - 0.5 * (squares_n1 + (scaled_CD * means_CD).sum(dim=-1))


def _start_means(unit_nD: Tensor, z_nC: Tensor) -> Tensor:
    weights, images = z_nC.topk(min(_START_IMAGES, len(z_nC)), dim=0)  # (8, C)
    return F.normalize(torch.einsum("kc,kcd->cd", weights, unit_nD[images]), dim=-1)


def _gaussians(unit_nD: Tensor, z_nC: Tensor, old_CD: Tensor, support: Labelled | None) -> tuple[Tensor, Tensor]:
    """Return the new means and variance. In their sums, all test images together have the weight 1."""
    unit_MD, weight_MC = unit_nD, z_nC / len(z_nC)
    if support is not None:
        unit_MD = torch.cat([unit_nD, support.unit_ND])
        weight_MC = torch.cat([weight_MC, support.weight * support.onehot_NC])
    mass_C = weight_MC.sum(dim=0)
    sums_CD = weight_MC.T @ unit_MD
    means_CD = torch.where((mass_C > MIN_WEIGHT)[:, None], F.normalize(sums_CD, dim=-1, eps=1e-30), old_CD)
    # The square is expanded, so that no (M, C, D) tensor is made.
    squares_D = weight_MC.sum(dim=1) @ unit_MD.square() + mass_C @ means_CD.square()
    variance_D = (squares_D - 2 * (sums_CD * means_CD).sum(dim=0)) / mass_C.sum()
    return means_CD, variance_D.clamp_min(MIN_VARIANCE)


def transduce(
    unit_nD: Tensor,
    head_CD: Tensor,
    scale: float,
    settings: TransClipSettings,
    support: Labelled | None = None,
    start: Solution | None = None,
) -> Solution:
    """Return the solution after ``settings.rounds`` rounds.

    All numbers are float64, because the variance v is a difference of nearly equal numbers.

    Args:
        unit_nD, head_CD: unit features of the test images, and the text head.
        support: the labelled images of the few-shot form.
        start: the solution to continue from; by default the zero-shot probabilities.
    """
    unit_nD, head_CD = unit_nD.double(), head_CD.double()
    text_weight = settings.exponent(support is not None)
    log_prior_nC = (scale * unit_nD @ head_CD.T).log_softmax(dim=-1)
    z_nC = log_prior_nC.exp()
    means_CD = _start_means(unit_nD, z_nC)
    if support is not None:
        sums_CD = support.onehot_NC.T @ support.unit_ND
        seen_C1 = support.onehot_NC.any(dim=0)[:, None]
        means_CD = torch.where(seen_C1, F.normalize(sums_CD, dim=-1), means_CD)
    variance_D = torch.full_like(unit_nD[0], 1 / unit_nD.shape[1])
    if start is not None:
        z_nC, means_CD, variance_D = start.z_nC, start.means_CD, start.variance_D
    cosines_MJ, nearest_MJ = nearest_others(unit_nD, settings.neighbours)
    if support is not None:
        of_support = nearest_test_images(support.unit_ND, unit_nD, settings.neighbours, int(settings.skip_nearest))
        cosines_MJ, nearest_MJ = (torch.cat(pair) for pair in zip((cosines_MJ, nearest_MJ), of_support, strict=True))
    for number in range(settings.rounds):
        own_nC = text_weight * log_prior_nC + log_likelihood(unit_nD, means_CD, variance_D) / LIKELIHOOD_DIVISOR
        z_nC = update_labels(own_nC, z_nC, cosines_MJ, nearest_MJ, support.onehot_NC if support else None)
        if number + 1 < settings.rounds:
            means_CD, variance_D = _gaussians(unit_nD, z_nC, means_CD, support)
    return Solution(z_nC, means_CD, variance_D)


@register(
    title="TransCLIP",
    palette=28,
    summary="classifies all test images together, by Gaussian classes and neighbours",
    paper="https://arxiv.org/abs/2406.01837",
    tracks=frozenset({"tta"}),
    idle=(Idle(("gamma", "skip_nearest"), {}),),
)
def adapt(task: Task, settings: TransClipSettings) -> Adapted:
    """Classify the unlabelled test images together. Raises ``ValueError`` if the task has none."""
    unit_nD = unit_test_features(task)
    head_CD, scale, support = task.head_CD.to(unit_nD), task.backbone.logit_scale, None
    if len(task.support):
        onehot_NC = F.one_hot(task.support.labels_N.to(unit_nD.device), len(head_CD)).double()
        weight = LIKELIHOOD_DIVISOR * settings.gamma / len(onehot_NC)
        support = Labelled(unit_support_features(task, EVALUATION_VIEW).double(), onehot_NC, weight)
    solved = transduce(unit_nD, head_CD, scale, settings, support)
    changed = (solved.z_nC.argmax(dim=-1) != (unit_nD @ head_CD.T).argmax(dim=-1)).double().mean()
    # The logits are the exponent in the formula of z, without the term in f^2, which is equal for all classes. So they
    # are linear in f.
    scaled_CD = solved.means_CD / solved.variance_D / LIKELIHOOD_DIVISOR
    weight_CD = (settings.exponent(support is not None) * scale * head_CD.double() + scaled_CD).float()
    bias_C = (-0.5 * (scaled_CD * solved.means_CD).sum(dim=-1)).float()
    classifier = TransductiveClassifier(weight_CD, bias_C, unit_nD, solved.z_nC.float(), settings.neighbours)
    return Adapted(classifier, details={"changed_predictions": 100 * float(changed)})
