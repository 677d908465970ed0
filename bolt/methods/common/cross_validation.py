"""Cross-validation on the support: how well a setting does on labelled images that were not used for the training.

A few-shot task has no validation split, so methods on frozen features choose a setting by this cross-validation. The
images of every class are split into folds as evenly as possible. A classifier is trained on all folds but one, and
classifies the un-augmented images of the fold that was left out.

The text head is not trained on the support, so its accuracy on the support is a fair estimate. If a method is less
accurate on held-out images than the text head, its ``details`` say so (:func:`compared_with_zero_shot`).

Shape legend: N support images, B rows, F folds, M images that a fold trains on, H images that it holds out, C classes,
D joint embedding width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bolt.methods.common.frozen_features import unit_support_features
from bolt.task.task import EVALUATION_VIEW, Support, Task

NO_HOLD_OUT = "fixed: a class has one image, none to leave out"
"""The text in a method's ``details`` if no image could be held out to choose a setting."""
_NUMBERS_AT_ONCE = 2**24
"""Folds that are trained at once keep at most this many numbers in memory (64 MiB in float32). A fold that needs more
is trained alone."""


class FoldStack(NamedTuple):
    """Some folds with equal numbers of held-out images, stacked so that one computation trains on all of them.

    Stacking saves time: four folds train as fast as one. Training on frozen features consists of many small operations,
    and its time depends on the number of these operations, not on their size.

    Attributes:
        support: the whole support.
        kept_FM: rows of the support to train on, ascending.
        held_out_FH: rows of the support that are held out.
        queries_FHD: the unit features of the held-out images, un-augmented.
        labels_FH: the classes of the held-out images.
    """

    support: Support
    kept_FM: Tensor
    held_out_FH: Tensor
    queries_FHD: Tensor
    labels_FH: Tensor

    def order(self, epoch: int) -> Tensor:
        """Return the support rows (F, M) that an epoch visits in each fold, in order, without the held-out rows."""
        order_N = self.support.order(epoch).to(self.kept_FM.device)
        kept_FN = torch.zeros(len(self.kept_FM), len(order_N), dtype=torch.bool, device=order_N.device)
        kept_FN.scatter_(1, self.kept_FM, True)
        return order_N.expand_as(kept_FN)[kept_FN[:, order_N]].view_as(self.kept_FM)

    def correct(self, logits_FHC: Tensor) -> Tensor:
        """Count the held-out images of all folds that the logits classify correctly: (..., F, H, C) -> (...)."""
        return (logits_FHC.argmax(dim=-1) == self.labels_FH).sum(dim=(-2, -1))


def fewest_images(labels_N: Tensor) -> int:
    """Return the number of images of the smallest class. Classes without an image do not count."""
    return int(labels_N.bincount()[labels_N].min())


def stratified_folds(labels_N: Tensor, folds: int, together: Sequence[Sequence[int]] = ()) -> Tensor:
    """Return the fold of each image, (N,). The images of each class are assigned to the folds in turn.

    Args:
        together: groups of images that belong together, such as copies of one picture, as row numbers. The images of a
            group get the same fold; the largest groups are assigned first.
    """
    fold_N = torch.full_like(labels_N, -1)
    filled_CF = torch.zeros(int(labels_N.max()) + 1, folds, dtype=torch.int64)
    for rows in sorted(together, key=len, reverse=True):
        labels = labels_N[list(rows)].cpu()
        fold = int(filled_CF[labels].sum(dim=0).argmin())
        fold_N[list(rows)] = fold
        filled_CF[sorted(set(labels.tolist())), fold] += 1
    for label in torch.unique(labels_N).tolist():
        members = torch.nonzero((labels_N == label) & (fold_N < 0)).flatten()
        order = filled_CF[label].argsort(stable=True).to(labels_N.device)  # the emptiest fold first
        fold_N[members] = order[torch.arange(len(members), device=labels_N.device) % folds]
    return fold_N


def fold_stacks(task: Task, folds: int, numbers_per_fold: float) -> Iterator[FoldStack]:
    """Split the support into folds, and yield stacks of folds that are trained at once.

    There are ``folds`` folds, or fewer if the smallest class has fewer images. Every class that has an image must have
    at least two, see :func:`fewest_images`.

    Args:
        numbers_per_fold: how many numbers the training on one fold keeps in memory. The larger this number is, the
            fewer folds a stack has. With infinity, every stack has one fold.
    """
    queries_ND = unit_support_features(task, EVALUATION_VIEW)
    labels_N = task.support.labels_N.to(queries_ND.device)
    fold_N = stratified_folds(labels_N, min(folds, fewest_images(labels_N)))
    most = max(1, int(_NUMBERS_AT_ONCE / numbers_per_fold))
    by_size: dict[int, list[int]] = {}
    for fold, size in enumerate(fold_N.bincount().tolist()):
        by_size.setdefault(size, []).append(fold)
    for members in by_size.values():
        for start in range(0, len(members), most):
            held_out_FN = fold_N == torch.tensor(members[start : start + most], device=fold_N.device)[:, None]
            kept_FM, held_out_FH = (_columns(chosen_FN) for chosen_FN in (~held_out_FN, held_out_FN))
            yield FoldStack(task.support, kept_FM, held_out_FH, queries_ND[held_out_FH], labels_N[held_out_FH])


def summed(correct: Iterable[Tensor]) -> list[int]:
    """Return the numbers of correct images, summed over all stacks of folds.

    ``correct``: each stack's result of :meth:`FoldStack.correct`.
    """
    total: list[int] = torch.stack(list(correct)).sum(dim=0).tolist()
    return total


def _columns(chosen_FN: Tensor) -> Tensor:
    """Return the indices of the chosen columns of each row. Every row must have equally many chosen columns."""
    return torch.nonzero(chosen_FN)[:, 1].view(len(chosen_FN), -1)


def with_images(task: Task, rows: Tensor) -> Task:
    """Return a copy of a task whose support has only the images in ``rows`` (B,).

    Epoch e visits these images in the same order as epoch e of the whole support. The copy reports no metrics.
    """
    whole = task.support
    on_cpu = rows.cpu()
    position_N = torch.full((len(whole),), -1)
    position_N[on_cpu] = torch.arange(len(on_cpu))

    def features(view: int) -> Tensor:
        features_ND = whole.features(view)
        return features_ND[rows.to(features_ND.device)]

    def order(epoch: int) -> Tensor:
        order_N = position_N[whole.order(epoch).cpu()]
        return order_N[order_N >= 0]

    support = Support(
        labels_N=whole.labels_N[rows.to(whole.labels_N.device)],
        indices_N=whole.indices_N[on_cpu],
        pixels=lambda view, some: whole.pixels(view, on_cpu[some.cpu()]),
        features=features,
        order=order,
    )
    return replace(task, support=support, report=lambda epoch, metrics: None, after_epoch=lambda epoch, make: None)


def compared_with_zero_shot(task: Task, correct: int) -> dict[str, str]:
    """Return an entry for ``details`` if a method is worse than the text head on the support, else an empty mapping.

    Args:
        correct: how many images of the support the method classifies correctly when they are held out.
    """
    unit_ND, head_CD = unit_support_features(task, EVALUATION_VIEW), task.head_CD.to(task.backbone.device)
    labels_N = task.support.labels_N.to(unit_ND.device)
    zero_shot = int(((unit_ND @ head_CD.T.to(unit_ND)).argmax(dim=-1) == labels_N).sum())
    if correct >= zero_shot:
        return {}
    size = len(labels_N)
    return {
        "worse_than_zero_shot": f"{100 * correct / size:.1f} % of held-out support images are correct, "
        f"with the text head {100 * zero_shot / size:.1f} %"
    }
