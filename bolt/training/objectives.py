"""Loss functions. They compute in float32 for logits of any precision.

Shape legend: B images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy, computed in float32."""
    return F.cross_entropy(logits_BC.float(), labels_B)


def ufm_loss(
    weak_BC: Tensor, strong_BC: Tensor, targets_B: Tensor, trusted_B: Tensor, threshold: float = 0.99
) -> Tensor:
    """Return the loss of Unsupervised FixMatch (UFM): the cross-entropy of strong views with targets from weak views.

    The target of an image is the softmax of its weak logits or, if the image is trusted, the class in ``targets_B``.
    The loss is the mean over the confident images, whose target has an entry above ``threshold``. The gradient flows
    into the strong logits only. This is the loss of aTLAS's test-time script. The "sharpening" of that script
    multiplies the target by a half and normalises it again. This changes nothing, so it is left out here.

    If no image is confident, the loss is 0 with a gradient of zeros. AdamW still takes a step on such a batch, by the
    moments of earlier gradients and by its weight decay.

    Args:
        weak_BC: logits of the un-augmented view; rows of trusted images have no effect.
        strong_BC: logits of the augmented view.
        targets_B: class of each trusted image; entries of other images have no effect.
        trusted_B: whether each image is trusted, boolean.
        threshold: probability that a target's largest entry must exceed.
    """
    strong_BC = strong_BC.float()
    predicted_BC = weak_BC.detach().float().softmax(dim=-1)
    labelled_BC = torch.zeros_like(strong_BC).scatter_(1, targets_B[:, None], 1.0)  # F.one_hot would wait for the GPU
    targets_BC = torch.where(trusted_B[:, None], labelled_BC, predicted_BC)
    confident_B = (targets_BC.amax(dim=-1) > threshold).float()
    losses_B = F.cross_entropy(strong_BC, targets_BC, reduction="none")
    return (confident_B * losses_B).sum() / confident_B.sum().clamp_min(1)
