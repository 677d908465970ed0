"""Draws the labelled images that a method learns from (the support), and the order of its batches.

Both depend on the dataset and the seed only, so every method and every backbone gets the same images in the same order.
A support of k images per class is a prefix of every larger support.
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
"""How the images of a support are drawn, see :func:`draw_support`. ``listed`` images are read from a file, not
drawn."""

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
    """Draw ``shots`` images of every class; returns their positions in ``labels``, int64.

    The order is rank-major: every class's first image in class order, then every class's second image, and so on. So a
    draw of fewer shots is a prefix of a draw of more.

    Args:
        labels: class of every image of the training split.
        shots: images per class, k.
        dataset, seed: key the draw.
        short_classes: what to do with a class of fewer than ``shots`` images: ``refuse`` (raise), or ``take_all`` of
            them.
        class_count: the classes are 0 ... class_count - 1. Without it they are the labels that occur.
        draw: ``nested`` permutes each class with a generator of its own, so its images do not depend on other classes
            or on ``shots``. ``fresh`` is the authors' way: one generator, seeded by ``seed`` alone, for all classes in
            order, so that a draw of fewer shots has other images. A class with exactly ``shots`` images advances the
            generator too; one with fewer does not. ``imbalanced`` draws ``shots * class_count`` images of the whole
            pool at random, whatever their classes are: a class has as many as its frequency gives, which may be none. A
            draw of fewer shots is a prefix here too. The other names are codes of the field, whose draws are reproduced
            (:mod:`bolt.task.field_draws`), in their order. They draw over all classes; the images of the first
            ``class_count`` classes are kept.
        pool: draw from the whole split (``train``), or without the images of :func:`validation_tenth`
            (``less_validation``). A code of the field draws from the whole split.
        validation_labels: class of every image of a validation part, which some codes of the field draw first.

    Raises:
        TooFewImages: if a class has no image, or fewer than ``shots`` under ``short_classes="refuse"``. An
            ``imbalanced`` draw raises it if the whole pool has too few images.
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
    shared_generator = np.random.RandomState(seed)  # draws what the authors draw after ``np.random.seed(seed)``
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
    """Draw the validation images that go with a support of ``shots`` images a class; returns their positions, int64.

    A code of the field that draws validation images is followed. Otherwise there are at most four a class, as in Dassl;
    a small class gives what it has.
    """
    labels_V = np.asarray(validation_labels)
    if draw in FIELD_DRAWS and "val" in FIELD_DRAWS[draw].parts:
        return draw_as_published({"train": train_labels, "val": labels_V}, shots, seed=seed, code=draw)["val"]
    count = FieldDraw().validation_shots(shots)
    return draw_support(labels_V, count, dataset=f"{dataset} validation", seed=seed, short_classes="take_all")


def _too_few(label: int, dataset: str, images: int, shots: int) -> TooFewImages:
    return TooFewImages(f"class {label} of {dataset} has {images} training images, fewer than {shots} shots")


def validation_tenth(size: int) -> NDArray[np.int64]:
    """Return the positions of the images that the task-vector repositories hold out of ``size`` training images.

    They hold out a tenth, at most 5,000: the tail of ``torch.randperm`` seeded by 0, as their ``random_split`` does.
    For MNIST's 60,000 images the first one left for training is number 36,044, as in their code.
    """
    held_out = min(size // 10, 5000)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return order[size - held_out :].numpy()


def batch_order(size: int, *, dataset: str, seed: int, epoch: int) -> Tensor:
    """Return the permutation (size,) in which an epoch visits the images of the support."""
    return torch.randperm(size, generator=torch_generator("order", dataset, seed, epoch, size))
