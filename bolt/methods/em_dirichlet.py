"""EM-Dirichlet: clusters the class probabilities of all test images by Dirichlet densities (Martin et al., CVPR 2024).

Paper: arXiv:2405.18437. q_i (C,) are the class probabilities of image i: the softmax of 30 times the cosines. Every
class has a Dirichlet density with parameters alpha_c (C,). In each round, the parameters are fitted to the images by
maximum likelihood. Then the assignments u are computed from the densities and from the number of images in a class::

    u_i = softmax_c(lgamma(sum_d alpha_cd) - sum_d lgamma(alpha_cd) + sum_d (alpha_cd - 1) log q_id + balance v_c)
    v_c = log(share of the images in c) + 1

The hard form takes ten rounds and makes u one-hot. The soft form takes twenty. What differs from the official code:

- ``balance`` is 1, which is right if all classes are present. The official weight, lambda, assumes that a batch has
  five classes, which is knowledge of the labels. On a whole test set this weight leaves most classes without images.
- Cluster c is class c. The official code matches clusters to classes afterwards, which helps in batches of few images.

The method reads only the probabilities q of an image. TransCLIP and StatA also read its features. So this method shows
how far a transductive method gets without the features.

Shape legend: n test images, C classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.frozen_features import unit_test_features
from bolt.task.classifiers import TransductiveClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative

_TEMPERATURE = 30.0
_SMALL, _NEAR_ZERO = 1e-15, 1e-11
_MOST_STEPS, _STEPS_BETWEEN_TESTS = 1000, 50
_EMPTY = -10.0
"""The mean log q that the official code gives a class without images."""


@dataclass(frozen=True)
class EmDirichletSettings(Checked):
    """The form of the method.

    Attributes:
        assignment: whether an image is assigned to one class (``hard``) or in shares to all classes (``soft``).
        rounds: number of rounds; by default 10 for ``hard`` and 20 for ``soft``.
        balance: weight of v, the term for the number of images in a class. It is the official lambda divided by the
            number n of test images.
    """

    assignment: Literal["hard", "soft"] = "hard"
    rounds: AtLeast1 | None = None
    balance: NotNegative = 1.0


def fit_dirichlet(alpha_CC: Tensor, mean_log_CC: Tensor) -> Tensor:
    """Fit a Dirichlet density to each class by maximum likelihood; return the parameters (C, C).

    Args:
        alpha_CC: the parameters from which the iteration starts.
        mean_log_CC: for each class, the mean of log q over its images.
    """
    for step in range(_MOST_STEPS):
        next_a = alpha_CC + 1
        curvature = (2 * (torch.digamma(next_a) * alpha_CC - torch.lgamma(next_a)) / alpha_CC.square()).abs()
        curvature = torch.where(alpha_CC > _NEAR_ZERO, curvature, torch.pi**2 / 6)
        digamma_sum = torch.digamma(alpha_CC.sum(dim=-1, keepdim=True))
        b = torch.digamma(next_a) - digamma_sum - curvature * alpha_CC - mean_log_CC
        updated = (-b + (b.square() + 4 * curvature).sqrt()) / (2 * curvature)
        change = (updated - alpha_CC).square().sum() / alpha_CC.square().sum()
        alpha_CC = updated
        if step > 0 and step % _STEPS_BETWEEN_TESTS == 0 and change < _NEAR_ZERO:
            break
    return alpha_CC


def cluster(q_nC: Tensor, settings: EmDirichletSettings) -> tuple[Tensor, Tensor]:
    """Return the images' assignments u (n, C) and the Dirichlet parameters alpha (C, C), in float64."""
    q_nC, hard = q_nC.double(), settings.assignment == "hard"
    classes = q_nC.shape[1]
    u_nC, log_q_nC = q_nC, (q_nC + _SMALL).log()
    alpha_CC = torch.ones(classes, classes).to(q_nC)
    for _ in range(settings.rounds or (10 if hard else 20)):
        size_C = u_nC.sum(dim=0)
        present_C1 = (size_C > _SMALL)[:, None]
        mean_log_CC = torch.where(present_C1, u_nC.T @ log_q_nC / size_C[:, None].clamp_min(_SMALL), _EMPTY)
        alpha_CC = torch.where(present_C1, fit_dirichlet(alpha_CC, mean_log_CC), alpha_CC)
        v_C = (size_C / len(q_nC) + _SMALL).log() + 1
        constant_C = torch.lgamma(alpha_CC.sum(dim=-1)) - torch.lgamma(alpha_CC).sum(dim=-1)
        u_nC = (constant_C + log_q_nC @ (alpha_CC - 1).T + settings.balance * v_C).softmax(dim=-1)
        if hard:
            u_nC = F.one_hot(u_nC.argmax(dim=-1), classes).double()
    return u_nC, alpha_CC


@register(
    title="EM-Dirichlet",
    palette=43,
    summary="clusters the class probabilities of all test images by Dirichlet densities",
    paper="https://arxiv.org/abs/2405.18437",
    version=2,
    tracks=frozenset({"tta"}),
)
def adapt(task: Task, settings: EmDirichletSettings) -> Adapted:
    """Classify the unlabelled test images together. Raises ``ValueError`` if the task has none."""
    unit_nD = unit_test_features(task)
    head_CD = task.head_CD.to(unit_nD)
    zero_shot_nC = unit_nD.double() @ head_CD.double().T
    u_nC, _ = cluster((_TEMPERATURE * zero_shot_nC).softmax(dim=-1), settings)
    changed = (u_nC.argmax(dim=-1) != zero_shot_nC.argmax(dim=-1)).double().mean()
    weight_CD, bias_C = task.backbone.logit_scale * head_CD, torch.zeros(len(head_CD)).to(head_CD)
    classifier = TransductiveClassifier(weight_CD, bias_C, unit_nD, u_nC.float(), 0)
    empty = int((u_nC.sum(dim=0) < 0.5).sum())
    return Adapted(classifier, details={"changed_predictions": 100 * float(changed), "empty_classes": empty})
