"""Draws the labelled images that a method learns from (the support), and the order of its batches.

Images and order depend on dataset and seed only, so every method and backbone gets the same images in the same order.
By default, a support of k images per class is a prefix of every larger support.

The published codes of other projects draw other images, and those draws can be repeated here, image for image
(:class:`FieldDraw`). CoOp and its successors seed Python's ``random`` and draw class by class (Dassl,
``generate_fewshot_dataset``). Other repositories copied that function, but changed whether training or validation
images are drawn first, how many validation images are drawn, or how small classes are treated. So with the same seed,
each repository draws other images. ``random.Random(seed)`` gives the same draws as the seeded global generator.

Shape legend: N training images, V validation images.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bolt.seeds import numpy_generator, torch_generator

SupportDraw = Literal[
    "nested", "fresh", "imbalanced", "dassl", "tip_adapter", "clip_lora", "lp_plus_plus", "gda", "listed"
]
"""Ways to draw a support, see :func:`draw_support`. A ``listed`` support is read from a file and not drawn."""

NESTED_DRAWS = ("nested", "imbalanced")
"""Draws in which a support of fewer shots is a prefix of a larger one."""


FieldPart = Literal["train", "val"]


@dataclass(frozen=True)
class FieldDraw:
    """How the published code of one project draws few-shot training and validation images.

    Attributes:
        parts: the parts of the dataset (``train``, ``val``) from which images are drawn, in this order, with one
            generator.
        validation_shots: ``validation_shots(k)`` -> validation images per class.
        repeats: whether a class with fewer than k images is drawn with repetition. If not, all its images are taken,
            and the generator does not advance.
        stream: the values of k for which the code draws, one after another, with one generator. So a draw depends on
            the draws before it. Empty if each k has its own generator.
    """

    parts: tuple[FieldPart, ...] = ("train", "val")
    validation_shots: Callable[[int], int] = lambda shots: min(shots, 4)
    repeats: bool = False
    stream: tuple[int, ...] = ()


FIELD_DRAWS: Mapping[str, FieldDraw] = {
    "dassl": FieldDraw(),
    "tip_adapter": FieldDraw(parts=("train",), repeats=True),
    "clip_lora": FieldDraw(parts=("val", "train"), repeats=True),
    "lp_plus_plus": FieldDraw(validation_shots=lambda shots: shots, repeats=True),
    "gda": FieldDraw(parts=("train",), repeats=True, stream=(1, 2, 4, 8, 16)),
}
"""Name of a published code -> how it draws. CoOp, CoCoOp, MaPLe, PromptSRC, TaskRes and CLAP draw as ``dassl`` does."""


def draw_as_published(
    labels_of: Mapping[FieldPart, ArrayLike], shots: int, *, seed: int, code: str
) -> dict[FieldPart, NDArray[np.int64]]:
    """Draw images from ``train`` and ``val`` as a published code does; return their positions in each part, int64.

    In the result, the images of a class follow each other. Classes come in the order in which they first appear in the
    part.

    Args:
        labels_of: class of every image of ``train``, (N,), and of ``val``, (V,), in the order of the split file.
        shots: training images per class, k.
        code: a name in ``FIELD_DRAWS``.

    Raises ``KeyError`` for an unknown code, or if ``labels_of`` lacks a part from which the code draws. Raises
    ``ValueError`` if ``shots`` is below 1, or if the code draws for certain k only (``FieldDraw.stream``) and ``shots``
    is none of them.
    """
    way, generator = FIELD_DRAWS[code], random.Random(seed)
    if shots < 1 or (way.stream and shots not in way.stream):
        possible = ", ".join(map(str, way.stream)) or "at least 1"
        raise ValueError(f"{code} draws {possible} images per class, not {shots}")
    drawn = {}
    for count in way.stream[: way.stream.index(shots) + 1] if way.stream else (shots,):
        for part in way.parts:
            per_class = count if part == "train" else way.validation_shots(count)
            drawn[part] = _draw_part(np.asarray(labels_of[part]), per_class, generator, way.repeats)
    return drawn


def _draw_part(labels: NDArray[np.int64], per_class: int, generator: random.Random, repeats: bool) -> NDArray[np.int64]:
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(position)
    drawn: list[int] = []
    for positions in members.values():
        if len(positions) >= per_class:
            drawn += generator.sample(positions, per_class)
        else:
            drawn += generator.choices(positions, k=per_class) if repeats else positions
    return np.array(drawn, dtype=np.int64)


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
            pool at random, so the frequency of a class decides how many of its images are drawn, perhaps none. A draw
            of fewer shots is a prefix of this draw too. Any other name is a published code of another project, and the
            result has the images and the order of that code (:class:`FieldDraw`). Such a code draws over all classes,
            and the images of the first ``class_count`` classes are kept.
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

    The codes hold out a tenth of the ``size`` training images, at most 5,000: the end of ``torch.randperm`` with the
    seed 0, as ``random_split`` does. A reader can check that the permutations agree: for MNIST's 60,000 images, the
    permutation begins with image number 36,044, here and in the published codes. This image stays in the training part.
    """
    held_out = min(size // 10, 5000)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return order[size - held_out :].numpy()


def batch_order(size: int, *, dataset: str, seed: int, epoch: int) -> Tensor:
    """Return the permutation (size,) in which an epoch visits the images of the support."""
    return torch.randperm(size, generator=torch_generator("order", dataset, seed, epoch, size))
