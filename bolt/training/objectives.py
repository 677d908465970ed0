"""Losses, all of them in float32 whatever precision the logits come in.

Shape legend: B images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Mean cross-entropy in float32, whatever precision the logits come in."""
    return F.cross_entropy(logits_BC.float(), labels_B)


def ufm_loss(
    weak_BC: Tensor, strong_BC: Tensor, targets_B: Tensor, trusted_B: Tensor, threshold: float = 0.99
) -> Tensor:
    """Unsupervised FixMatch: the strong view of an image is to be classified as its weak view is.

    The target of an image is the softmax of its weak logits, or ``targets_B`` where it is trusted; images whose
    target's largest entry does not exceed ``threshold`` are left out, and the loss is the mean over the others. The
    gradient reaches the strong logits alone. (The loss of aTLAS's test-time script. Its "sharpening" multiplies by a
    half and normalises again, which changes nothing, so there is none here.)

    Without a confident image the mean is 0 / 0. The loss is 0 then, with a gradient of zeros, and such a batch moves
    nothing but AdamW's moments.

    Args:
        weak_BC: logits of the un-augmented view; rows of trusted images are not read.
        strong_BC: logits of the augmented view.
        targets_B: class of each trusted image; any class elsewhere.
        trusted_B: which images are trusted, boolean.
        threshold: confidence that a target must exceed.
    """
    strong_BC = strong_BC.float()
    guessed_BC = weak_BC.detach().float().softmax(dim=-1)
    certain_BC = F.one_hot(targets_B, strong_BC.shape[-1]).float()
    targets_BC = torch.where(trusted_B[:, None], certain_BC, guessed_BC)
    confident_B = (targets_BC.amax(dim=-1) > threshold).float()
    losses_B = F.cross_entropy(strong_BC, targets_BC, reduction="none")
    return (confident_B * losses_B).sum() / confident_B.sum().clamp_min(1)
