"""The choice of a merged tower's scale: by the support's labels, without labels or (as published) by test labels.

Without labels, a candidate is scored by the mutual information of image and predicted class: H(mean p) - mean H(p),
where p are the class probabilities of an image and H is the entropy. The mean entropy alone is a worse score.
Predictions become more certain with every step away from the pre-trained weights, right or wrong, and a tower that puts
all images into one class has zero entropy. The term H(mean p) penalises this.

Mean accuracy on the sixteen datasets of the demo grid, with BOLT's pooled start and alphas of 1, 3, 5, 7 and 10: 74.6 %
at the best alpha of each dataset, 73.9 % at the highest mutual information, 73.4 % at the lowest entropy, 73.0 % at the
best single alpha for all datasets.

Shape legend: N images, B batch, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.task.task import EVALUATION_VIEW, Adapted, Task

ScaleBy = Literal["support", "mutual_information"]

_BATCH = 256
_UNLABELLED = 1000
"""At most this many test images are encoded to choose a scale without labels."""


class ScaleChoice(NamedTuple):
    """A scale, and how it was chosen: ``fixed``, ``support``, ``mutual information`` or ``test labels``."""

    scale: float
    by: str

    @property
    def details(self) -> dict[str, float | int | str]:
        """The scale as ``alpha`` and how it was chosen as ``alpha_by``, for :attr:`bolt.task.task.Adapted.details`."""
        return {"alpha": self.scale, "alpha_by": self.by}


def choose_scale(
    task: Task, scales: Sequence[float], tower_at: Callable[[float], ImageTower], by: ScaleBy = "support"
) -> ScaleChoice:
    """Return the best candidate scale; ties go to the smallest. A single candidate is returned without scoring.

    Under the switch ``alpha_views: augmented``, every candidate is scored on a view of its own: the smallest scale on
    view 1 of the support, the next one on view 2, and so on. The BOLT authors' loader also draws new augmentations for
    every candidate.

    The test-time track has no labels. There, the best scale is the one with the highest mutual information on the test
    images, of which at most 1,000 are read. Under the switch ``tta_alpha: test_labels``, it is the one with the highest
    test accuracy, which the task's oracle measures.

    Args:
        tower_at: scale -> the merged tower with that scale.
        by: how to choose on tracks with labels: by the accuracy on the ``support``, or by the ``mutual_information`` on
            the images of the support.
    """
    candidates = sorted(scales)
    if len(candidates) == 1:
        return ScaleChoice(candidates[0], "fixed")
    if task.unlabelled is not None and task.protocol.tta_alpha == "test_labels":
        score, chosen_by = _test_accuracy, "test labels"
    elif task.unlabelled is None and by == "support":
        score, chosen_by = _correct, "support"
    else:
        score, chosen_by = _information, "mutual information"
    scores = [score(task, tower_at(scale), number) for number, scale in enumerate(candidates)]
    return ScaleChoice(candidates[scores.index(max(scores))], chosen_by)


def images_scored(scales: Sequence[float], images: int) -> int:
    """Return how many images are encoded to choose among ``scales``; 0 for a single scale."""
    return len(scales) * images if len(scales) > 1 else 0


def mutual_information(probabilities: Iterator[Tensor]) -> float:
    """Return the mutual information of image and predicted class in nats, H(mean p) - mean H(p), with the entropy H.

    ``probabilities``: batches of class probabilities p (B, C).
    """
    total_C, entropies, count = torch.zeros(()), 0.0, 0
    for batch_BC in probabilities:
        p_BC = batch_BC.double().cpu()
        total_C = total_C + p_BC.sum(dim=0)
        entropies += float(torch.special.entr(p_BC).sum())
        count += len(p_BC)
    return float(torch.special.entr(total_C / count).sum()) - entropies / count


def _correct(task: Task, tower: ImageTower, candidate: int) -> float:
    """Count the support images that the tower classifies correctly. ``candidate``: the index of the tower's scale."""
    labels_N = task.support.labels_N
    predicted = ((rows, logits_BC.argmax(dim=-1)) for rows, logits_BC in _logits(task, tower, candidate))
    return sum(float((found_B.to(labels_N.device) == labels_N[rows]).sum()) for rows, found_B in predicted)


def _information(task: Task, tower: ImageTower, candidate: int) -> float:
    return mutual_information(logits_BC.softmax(dim=-1) for _, logits_BC in _logits(task, tower, candidate))


def _logits(task: Task, tower: ImageTower, candidate: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the row numbers and the logits of each batch of images.

    The images are those of the support or, at test time, at most 1,000 of the unlabelled test images.
    """
    if task.unlabelled is None:
        view = EVALUATION_VIEW if task.protocol.alpha_views == "plain" else EVALUATION_VIEW + 1 + candidate
        pixels, chosen = task.support.pixels, torch.arange(len(task.support))
    else:
        view, pixels = EVALUATION_VIEW, task.unlabelled.pixels
        chosen = task.unlabelled.order("alpha", 0, len(task.unlabelled))[:_UNLABELLED].sort().values
    for rows in torch.split(chosen, _BATCH):
        yield rows, task.text_head(task.backbone.encode_images(pixels(view, rows), tower))


def _test_accuracy(task: Task, tower: ImageTower, candidate: int) -> float:
    assert task.oracle is not None, "under the switch tta_alpha: test_labels, every task has an oracle"
    return task.oracle(Adapted(task.text_head, tower))
