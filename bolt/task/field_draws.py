"""Draws the same few-shot images, image for image, as the published codes of other projects do.

CoOp and its successors seed Python's ``random`` and draw class by class with ``random.sample`` (Dassl,
``generate_fewshot_dataset``). Other repositories copied that function, but changed whether training or validation
images are drawn first, how many validation images are drawn, or how small classes are treated. So with the same seed,
each repository draws other images. Each variant is a :class:`FieldDraw`. ``random.Random(seed)`` gives the same draws
as the seeded global generator.

Shape legend: N training images, V validation images.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        raise ValueError(f"{code} draws {way.stream or 'at least 1'} images per class, not {shots}")
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
