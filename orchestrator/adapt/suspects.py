"""Finds images whose label may be wrong, from the predictions of models that did not learn from these images.

The rule comes from confident learning (Northcutt, Jiang and Chuang, 2021). The threshold of a class is its mean
predicted probability over the images with that label. An image is suspect if the probability of another class reaches
the threshold of that class and exceeds the probability of the image's label.

Shape legend: N images, C classes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.adapt.held_out_fold import HeldOut
from orchestrator.adapt.own_images import OwnImages
from orchestrator.datasets.part import RawDataset

SHOWN = 100
"""The largest number of suspects that the page shows."""

_SIDE = 96


@dataclass(frozen=True)
class Suspect:
    """An image whose label is improbable.

    Attributes:
        origin: the path of the image in the user's folder.
        given, likely: the names of the image's class and of the class that may be right.
        picture: a small JPEG as a ``data:`` URL; empty for suspects that the page does not show.
    """

    origin: str
    given: str
    likely: str
    picture: str


def suspect_labels(probabilities_NC: NDArray[np.float32], labels_N: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the row and the more likely class of each suspect image, the most improbable label first."""
    rows = np.arange(len(labels_N))
    classes = range(probabilities_NC.shape[1])
    own_C = np.array([probabilities_NC[labels_N == label, label].mean() for label in classes])
    confident_NC = np.where(probabilities_NC >= own_C, probabilities_NC, -1.0)
    confident_NC[rows, labels_N] = -1.0
    likely_N = confident_NC.argmax(axis=1)
    margin_N = probabilities_NC[rows, labels_N] - confident_NC[rows, likely_N]
    found = np.flatnonzero((confident_NC[rows, likely_N] >= 0) & (margin_N < 0))
    return [(int(n), int(likely_N[n])) for n in found[np.argsort(margin_N[found], kind="stable")]]


def find_suspects(held_out: Sequence[HeldOut], images: OwnImages) -> list[Suspect]:
    """Return the images whose label may be wrong, the most improbable label first.

    ``held_out``: the predictions of each measured candidate, all for the same images. Their probabilities are averaged.
    """
    raw, positions_N = images.raw, held_out[0].positions_N
    labels_N = raw.train.labels[positions_N]
    probabilities_NC = np.mean([each.probabilities_NC for each in held_out], axis=0)
    suspects: list[Suspect] = []
    for row, likely in suspect_labels(probabilities_NC, labels_N):
        position = int(positions_N[row])
        words = raw.class_names[labels_N[row]], raw.class_names[likely]
        picture = _picture(raw, position) if len(suspects) < SHOWN else ""
        suspects.append(Suspect(images.origin(position), *words, picture))
    return suspects


def _picture(raw: RawDataset, position: int) -> str:
    image = raw.train.read(position)
    image.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
