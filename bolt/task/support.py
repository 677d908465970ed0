"""Draws the labelled images that a method learns from (the support), and the order of its batches.

Both depend on the dataset and the seed only, so every method and every backbone gets the same images in the same order.
By default, a support of k images per class is a prefix of every larger support.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bolt.seeds import numpy_generator, torch_generator
from bolt.task.field_draws import FIELD_DRAWS, FieldDraw, draw_as_published

SupportDraw = Literal[
    "nested", "fresh", "imbalanced", "dassl", "tip_adapter", "clip_lora", "lp_plus_plus", "gda", "listed"
]
"""Ways to draw a support, see :func:`draw_support`. A ``listed`` support is read from a file and not drawn."""

NESTED_DRAWS = ("nested", "imbalanced")
"""Draws in which a support of fewer shots is a prefix of a larger one."""


class TooFewImages(ValueError):
    """A class has fewer training images than the number of shots."""


def draw_support(
    labels: ArrayLike,
    shots: int,
    *,
    dataset: str,
    seed: int,
    short_classes: Literal["refuse", "take_all"] = "refuse",
    class_count: int | None = None,
    draw: SupportDraw = "nested",
    pool: Literal["train", "less_validation"] = "train",
    validation_labels: ArrayLike = (),
) -> NDArray[np.int64]:
    """Draw ``shots`` images of every class; return their positions in ``labels``, int64.

    The first image of every class comes first, in the order of the classes, then the second image of every class, and
    so on. So a ``nested`` draw of fewer shots is a prefix of a draw of more shots.

    Args:
        labels: class of every image of the training split.
        shots: images per class, k.
        dataset, seed: the name and the number that seed the draw.
        short_classes: what to do with a class of fewer than ``shots`` images: ``refuse`` (raise an error), or
            ``take_all`` images of the class.
        class_count: the classes are 0 ... class_count - 1; by default, the labels that occur.
        draw: ``nested`` shuffles each class with its own generator, so the images of a class depend neither on the
            other classes nor on ``shots``. ``fresh`` is the BOLT authors' way: one generator, seeded by ``seed`` alone,
            draws class after class, so other numbers of shots give other images. A class with fewer than ``shots``
            images does not advance that generator. ``imbalanced`` draws ``shots * class_count`` images of the whole
            pool at random, so the frequency of a class decides how many of its images are drawn, perhaps none. Here
            too, a draw of fewer shots is a prefix. Any other name is a published code of another project, whose draw is
            reproduced in the code's order (:mod:`bolt.task.field_draws`). Such a code draws over all classes, and the
            images of the first ``class_count`` classes are kept.
        pool: draw from the whole split (``train``), or without the images of :func:`validation_tenth`
            (``less_validation``). A published code always draws from the whole split.
        validation_labels: class of every validation image. Some published codes draw validation images first.

    Raises:
        TooFewImages: if a class has no image, or fewer than ``shots`` under ``short_classes="refuse"``; for an
            ``imbalanced`` draw, if the whole pool has too few images.
        ValueError: if ``shots`` is below 1.
    """
    if shots < 1:
        raise ValueError(f"shots must be at least 1, not {shots}")
    labels_N = np.asarray(labels)
    classes = np.unique(labels_N) if class_count is None else np.arange(class_count)
    drawable = np.ones(len(labels_N), dtype=bool)
    if pool == "less_validation":
        drawable[validation_tenth(len(labels_N))] = False
    if draw == "imbalanced":
        members, wanted = np.flatnonzero(drawable), shots * len(classes)
        if len(members) < (wanted if short_classes == "refuse" else 1):
            raise TooFewImages(f"{dataset} has {len(members)} training images, fewer than {wanted} to draw")
        order = numpy_generator("imbalanced support", dataset, seed).permutation(members)
        return np.asarray(order[:wanted], dtype=np.int64)
    if draw in FIELD_DRAWS:
        counts = np.bincount(labels_N, minlength=len(classes))[classes]
        if counts.min() < (shots if short_classes == "refuse" else 1):
            raise _too_few(int(classes[counts.argmin()]), dataset, int(counts.min()), shots)
        drawn_as_they_do = draw_as_published({"train": labels_N, "val": validation_labels}, shots, seed=seed, code=draw)
        return np.array([index for index in drawn_as_they_do["train"] if labels_N[index] < len(classes)])
    shared_generator = np.random.RandomState(seed)  # draws as the authors' code does after ``np.random.seed(seed)``
    by_class = []
    for label in classes.tolist():
        members = np.flatnonzero((labels_N == label) & drawable)
        if len(members) < (shots if short_classes == "refuse" else 1):
            raise _too_few(label, dataset, len(members), shots)
        if draw == "nested":
            by_class.append(numpy_generator("support", dataset, seed, label).permutation(members)[:shots])
        else:
            short = len(members) < shots
            by_class.append(members if short else shared_generator.choice(members, shots, replace=False))
    ranks = range(max(len(members) for members in by_class))
    drawn = [members[rank] for rank in ranks for members in by_class if rank < len(members)]
    return np.array(drawn, dtype=np.int64)


def draw_validation(
    validation_labels: ArrayLike, train_labels: ArrayLike, shots: int, *, dataset: str, seed: int, draw: SupportDraw
) -> NDArray[np.int64]:
    """Draw the validation images for a support of ``shots`` images per class; return their positions, int64.

    If ``draw`` is a published code that draws validation images, they are drawn as in that code. Otherwise at most four
    images per class are drawn, as in Dassl. A class with too few images gives all of them.
    """
    labels_V = np.asarray(validation_labels)
    if draw in FIELD_DRAWS and "val" in FIELD_DRAWS[draw].parts:
        return draw_as_published({"train": train_labels, "val": labels_V}, shots, seed=seed, code=draw)["val"]
    count = FieldDraw().validation_shots(shots)
    return draw_support(labels_V, count, dataset=f"{dataset} validation", seed=seed, short_classes="take_all")


def _too_few(label: int, dataset: str, images: int, shots: int) -> TooFewImages:
    return TooFewImages(f"class {label} of {dataset} has {images} training images, fewer than {shots} shots")


def validation_tenth(size: int) -> NDArray[np.int64]:
    """Return the positions of the training images that the published codes on task vectors hold out for validation.

    Of ``size`` training images, the codes hold out a tenth, at most 5,000: as in ``random_split``, the tail of
    ``torch.randperm`` with the seed 0. A reader can check that the permutations agree: for MNIST's 60,000 images, the
    permutation begins with image number 36,044, here and in the published codes. This image stays in the training part.
    """
    held_out = min(size // 10, 5000)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return order[size - held_out :].numpy()


def batch_order(size: int, *, dataset: str, seed: int, epoch: int) -> Tensor:
    """Return the permutation (size,) in which an epoch visits the images of the support."""
    return torch.randperm(size, generator=torch_generator("order", dataset, seed, epoch, size))
