"""The classifier of LP++ (Huang et al., 2024): linear class weights and a text head, blended with one weight per class.

``logits_c = w_c . f + b_c + alpha_c (t_c . f)`` for a unit feature f and unit text embeddings t_c.

Shape legend: N support images, B queries, C classes, D joint embedding width, E = D + 1 with a one for the bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.task.classifiers import BlendClassifier, append_one
from bolt.task.task import Adapted
from bolt.training.objectives import cross_entropy

_ALPHA_FACTOR = 250.0
"""Of the official code; alpha then starts at about 60 for CLIP."""


@dataclass(frozen=True, eq=False)
class Blend(BlendClassifier):
    """The classifier in training; its tensors are updated in place."""

    def gradients(self, unit_ND: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean cross-entropy, and its gradients in ``weight_CE`` and ``alpha_C``, in closed form."""
        logits_NC = self.logits(unit_ND)
        excess_NC = (logits_NC.softmax(dim=-1) - F.one_hot(labels_N, logits_NC.shape[1])) / len(labels_N)
        by_alpha_C = (excess_NC * (unit_ND @ self.head_CD.T)).sum(dim=0)
        return cross_entropy(logits_NC, labels_N), excess_NC.T @ append_one(unit_ND), by_alpha_C

    def adapted(self) -> Adapted:
        """The method's result with the current tensors."""
        current = BlendClassifier(self.head_CD, self.weight_CE.detach().clone(), self.alpha_C.detach().clone())
        return Adapted(
            current,
            trainable_parameters=current.weight_CE.numel() + current.alpha_C.numel(),
            details={"alpha_mean": float(current.alpha_C.mean())},
        )


def initial_blend(unit_ND: Tensor, labels_N: Tensor, head_CD: Tensor, weights: Literal["mean", "sum"]) -> Blend:
    """The untrained classifier: w is the mean or sum of a class's features, b is 0, alpha is equal for all classes.

    alpha is 250 times the mean over the classes of (mean feature . text embedding). A class without an image is left
    out of that mean, and its w is 0.
    """
    onehot_NC = F.one_hot(labels_N, len(head_CD)).to(unit_ND)
    counts_C1 = onehot_NC.sum(dim=0)[:, None]
    sums_CD = onehot_NC.T @ unit_ND
    means_CD = sums_CD / counts_C1.clamp_min(1)
    alpha = _ALPHA_FACTOR * (means_CD * head_CD).sum() / (counts_C1 > 0).sum()
    return Blend(head_CD, F.pad(means_CD if weights == "mean" else sums_CD, (0, 1)), alpha.repeat(len(head_CD)))


def safe_steps(unit_ND: Tensor, head_CD: Tensor) -> tuple[float, float]:
    """Step sizes for (w, b) and alpha that cannot raise the loss: the inverse Lipschitz constants of the gradients."""
    size = len(unit_ND)
    return 2 * size / _curvature(append_one(unit_ND)), 2 * size / _text_energy(unit_ND, head_CD)


def official_steps(unit_ND: Tensor, head_CD: Tensor) -> tuple[float, float]:
    """The official code's step sizes for (w, b) and alpha."""
    size = len(unit_ND)
    return 4 * size / _curvature(unit_ND), size / (4 * _text_energy(unit_ND, head_CD))


def _curvature(features_ND: Tensor) -> float:
    """The largest eigenvalue of F^T F, for features F (N, D)."""
    return float(torch.linalg.eigvalsh(features_ND.T @ features_ND)[-1])


def _text_energy(unit_ND: Tensor, head_CD: Tensor) -> float:
    """max over the classes of sum_i (t_c . f_i)^2."""
    return float((unit_ND @ head_CD.T).square().sum(dim=0).max())
