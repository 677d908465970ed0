"""The classifier of LP++ (Huang et al., 2024): linear class weights and a text head, blended with one weight per class.

``logits_c = w_c . f + b_c + alpha_c (t_c . f)`` for a unit feature f and unit text embeddings t_c.

Shape legend: N support images, F classifiers of a stack, B queries, C classes, D joint embedding width, E = D + 1: the
features and a 1 for the bias.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.task.classifiers import BlendClassifier, append_one
from bolt.task.task import Adapted
from bolt.training.loop import cross_entropy

_ALPHA_FACTOR = 250.0
"""The factor in the initial alpha, from the official code, see :func:`initial_blend`. With the features of CLIP, alpha
then starts near 60."""


@dataclass(frozen=True, eq=False)
class Blend(BlendClassifier):
    """LP++'s classifier, or a stack of them, while it is trained; its tensors are updated in place."""

    def gradients(self, unit_ND: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean cross-entropy, and its gradients with respect to ``weight_CE`` and ``alpha_C``."""
        ones_NE, text_NC = append_one(unit_ND), unit_ND @ self.head_CD.T
        logits_NC = self.logits_of(ones_NE, text_NC)
        excess_NC = excess(logits_NC, F.one_hot(labels_N, logits_NC.shape[-1]))
        return mean_loss(logits_NC, labels_N), excess_NC.mT @ ones_NE, (excess_NC * text_NC).sum(dim=-2)

    def adapted(self) -> Adapted:
        """Return the method's result with the current tensors."""
        current = BlendClassifier(self.head_CD, self.weight_CE.detach().clone(), self.alpha_C.detach().clone())
        details = {"alpha_mean": float(current.alpha_C.mean())}
        return Adapted(current, None, current.weight_CE.numel() + current.alpha_C.numel(), details)


def mean_loss(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Return the mean cross-entropy over all images and, for a stack, over all its classifiers."""
    return cross_entropy(logits_NC.flatten(0, -2), labels_N.flatten())


def excess(logits_NC: Tensor, onehot_NC: Tensor) -> Tensor:
    """Return the mean cross-entropy's gradient with respect to the logits, (N, C): (probabilities - onehot) / N."""
    return (logits_NC.softmax(dim=-1) - onehot_NC) / logits_NC.shape[-2]


def initial_blend(unit_ND: Tensor, labels_N: Tensor, head_CD: Tensor, weights: Literal["mean", "sum"]) -> Blend:
    """Return the untrained classifier: w is a class's mean or summed features, b is 0, all classes have equal alpha.

    alpha is 250 times the mean over the classes of (mean feature . text embedding). A class without an image has w = 0
    and is left out of that mean. Features (F, N, D) and labels (F, N) give a stack of F classifiers.
    """
    onehot_NC = F.one_hot(labels_N, len(head_CD)).to(unit_ND)
    counts_C1 = onehot_NC.sum(dim=-2)[..., None]
    sums_CD = onehot_NC.mT @ unit_ND
    means_CD = sums_CD / counts_C1.clamp_min(1)
    alpha = _ALPHA_FACTOR * (means_CD * head_CD).sum(dim=(-2, -1)) / (counts_C1 > 0).sum(dim=(-2, -1))
    weight_CE = F.pad(means_CD if weights == "mean" else sums_CD, (0, 1))
    return Blend(head_CD, weight_CE, alpha[..., None].repeat_interleave(len(head_CD), dim=-1))


def safe_steps(unit_ND: Tensor, head_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return step sizes for (w, b) and alpha that cannot raise the loss: inverse Lipschitz constants of the gradients.

    The step sizes are float64 tensors: scalars, or (F,) for the features (F, N, D) of a stack.
    """
    curvature, energy = _curvature(append_one(unit_ND)), _text_energy(unit_ND, head_CD)
    size = torch.tensor(2 * unit_ND.shape[-2]).to(curvature)  # PyTorch would round a Python number / tensor twice
    return size / curvature, size / energy


def official_steps(unit_ND: Tensor, head_CD: Tensor) -> tuple[float, float]:
    """Return the official code's step sizes for (w, b) and alpha."""
    size = len(unit_ND)
    return 4 * size / float(_curvature(unit_ND)), size / (4 * float(_text_energy(unit_ND, head_CD)))


def _curvature(features_ND: Tensor) -> Tensor:
    """Return the largest eigenvalue of X^T X, for features X (N, D), in float64."""
    eigenvalues_D: Tensor = torch.linalg.eigvalsh(features_ND.mT @ features_ND)
    return eigenvalues_D[..., -1].double()


def _text_energy(unit_ND: Tensor, head_CD: Tensor) -> Tensor:
    """Return the maximum over the classes of sum_i (t_c . f_i)^2, in float64."""
    return (unit_ND @ head_CD.T).square().sum(dim=-2).amax(dim=-1).double()
