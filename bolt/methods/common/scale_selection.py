"""Choosing the scale of a merged tower among candidates: by labels, without labels, or (as published) by test labels.

Without labels a scale is worth the information its predictions carry about the image, H(mean p) - mean H(p). The
mean entropy alone is the lesser judge: predictions grow more certain with every step away from the pre-trained weights,
right or wrong, and a tower that puts all images into one class has no entropy at all. The first term is what such
a tower loses. On the sixteen datasets of the demo, with alphas of 1, 3, 5, 7 and 10, BOLT's start reaches
74.6 % at the best alpha of each dataset, 73.9 % at the most informative, 73.4 % at the least entropy and 73.0 % at
the best alpha for all.

Shape legend: N images, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.task.task import EVALUATION_VIEW, Adapted, Task, cosine_classifier

ScaleBy = Literal["support", "entropy"]

_BATCH = 256
_UNLABELLED = 1000
"""Test images that are looked at for a choice without labels."""


class ScaleChoice(NamedTuple):
    """A scale, and what it was chosen by: ``fixed``, ``support``, ``entropy`` or ``test labels``."""

    scale: float
    by: str


def choose_scale(
    task: Task, scales: Sequence[float], tower_at: Callable[[float], ImageTower], by: ScaleBy = "support"
) -> ScaleChoice:
    """The best of the candidate scales, the smallest of several; a single one is used without looking at an image.

    Args:
        tower_at: a scale -> the plain tower to be judged.
        by: on the labelled tracks, the most accurate scale on the ``support``, or by ``entropy`` the most informative
            one on its images. On the test-time track there are no labels: a keyed subset of the test images is
            judged by entropy or, under ``tta_alpha: test_labels``, the oracle is asked.
    """
    candidates = sorted(scales)
    if len(candidates) == 1:
        return ScaleChoice(candidates[0], "fixed")
    if task.unlabelled is not None and task.protocol.tta_alpha == "test_labels":
        scores, by_what = [_test_accuracy(task, tower_at(scale)) for scale in candidates], "test labels"
    elif task.unlabelled is None and by == "support":
        scores, by_what = [_correct(task, tower_at(scale)) for scale in candidates], "support"
    else:
        scores, by_what = [mutual_information(_probabilities(task, tower_at(scale))) for scale in candidates], "entropy"
    return ScaleChoice(candidates[scores.index(max(scores))], by_what)


def images_scored(scales: Sequence[float], images: int) -> int:
    """How many forward passes the choice among ``scales`` costs: none where there is nothing to choose."""
    return len(scales) * images if len(scales) > 1 else 0


def mutual_information(probabilities: Iterator[Tensor]) -> float:
    """Mutual information of image and predicted class, H(mean p) - mean H(p) in nats, of batches of p (B, C)."""
    total_C, entropies, count = torch.zeros(()), 0.0, 0
    for batch_BC in probabilities:
        p_BC = batch_BC.double().cpu()
        total_C = total_C + p_BC.sum(dim=0)
        entropies += float(torch.special.entr(p_BC).sum())
        count += len(p_BC)
    return float(torch.special.entr(total_C / count).sum()) - entropies / count


def _correct(task: Task, tower: ImageTower) -> float:
    """How many support images a tower classifies correctly."""
    labels_N = task.support.labels_N
    return float(
        sum(
            int((logits_BC.argmax(dim=-1).to(labels_N.device) == labels_N[rows]).sum())
            for rows, logits_BC in _logits(task, tower)
        )
    )


def _probabilities(task: Task, tower: ImageTower) -> Iterator[Tensor]:
    return (logits_BC.softmax(dim=-1) for _, logits_BC in _logits(task, tower))


def _logits(task: Task, tower: ImageTower) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and their logits, batch by batch: of the support or, at test time, of a subset of the test images."""
    classify = cosine_classifier(task.head_CD, task.backbone.logit_scale)
    if task.unlabelled is None:
        view = EVALUATION_VIEW if task.protocol.alpha_views == "plain" else EVALUATION_VIEW + 1
        pixels, chosen = task.support.pixels, torch.arange(len(task.support))
    else:
        view, pixels = EVALUATION_VIEW, task.unlabelled.pixels
        chosen = task.unlabelled.order("alpha", 0, len(task.unlabelled))[:_UNLABELLED].sort().values
    for rows in torch.split(chosen, _BATCH):
        yield rows, classify(task.backbone.encode_images(pixels(view, rows), tower))


def _test_accuracy(task: Task, tower: ImageTower) -> float:
    if task.oracle is None:
        raise ValueError("tta_alpha is test_labels, but the task has no oracle")
    return task.oracle(Adapted(cosine_classifier(task.head_CD, task.backbone.logit_scale), tower))
