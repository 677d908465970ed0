"""The predictions of a finished cell on its test images: one compressed npz file beside its result.

For each scored test split, the file has the arrays ``<dataset>/labels``, ``<dataset>/predicted`` and
``<dataset>/probability``. If only a part of the split was scored, it also has ``<dataset>/rows``. The result records
the file's size and checksum (:class:`orchestrator.store.results.PredictionsFile`).

Shape legend: N scored images of a split.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.store.results import Evaluation, PredictionsFile, Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray

MAX_CLASSES = 2**16
FULL_PROBABILITY = 255
"""The stored value of a probability of 1."""

_HEADER, _LARGEST_ITEM = 1024, 4
"""Limits in bytes for each array in the file: ``_HEADER`` for the array's header, ``_LARGEST_ITEM`` for each image. An
array that would unpack to more bytes is refused."""

_TYPES = {"labels": "uint16", "predicted": "uint16", "probability": "uint8", "rows": "uint32"}


@dataclass(frozen=True, eq=False)
class StoredPredictions:
    """The predictions of a cell's classifier for the images of one test split, in the order of the split.

    Attributes:
        labels, predicted: indices of the true and of the predicted class in the list of the target's classes, (N,).
        probability: probability of the predicted class in units of 1/255, (N,).
        rows: positions of the images in the split, (N,); ``None`` if all images of the split were scored.
    """

    dataset: str
    labels: NDArray[np.uint16]
    predicted: NDArray[np.uint16]
    probability: NDArray[np.uint8]
    rows: NDArray[np.uint32] | None = None

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each image was classified correctly, (N,)."""
        correct_N: NDArray[np.bool_] = self.labels == self.predicted
        return correct_N


def predictions_content(splits: Iterable[StoredPredictions]) -> bytes:
    """Return the content of a cell's predictions file."""
    import numpy as np

    named = {f"{split.dataset}/{name}": getattr(split, name) for split in splits for name in _TYPES}
    arrays = {name: array for name, array in named.items() if array is not None}
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)  # writes a fixed date, so equal arrays give equal bytes
    return stream.getvalue()


def predictions_file(content: bytes) -> PredictionsFile:
    """Return the size and checksum of a predictions file with this content."""
    return PredictionsFile(len(content), hashlib.sha256(content).hexdigest())


def checked_predictions(content: bytes | None, result: Result) -> tuple[StoredPredictions, ...]:
    """Return the predictions of a result from the ``content`` of its file; empty if the result records no such file.

    Raises ``ValueError`` if the file is missing, differs from the recorded checksum, or does not fit the result.
    """
    if result.predictions is None:
        return ()
    if content is None or predictions_file(content) != result.predictions:
        raise ValueError("the predictions are missing, or their checksum differs")
    return parse_predictions(content, result.evaluations)


def parse_predictions(content: bytes, evaluations: Sequence[Evaluation]) -> tuple[StoredPredictions, ...]:
    """Return the predictions in a file. Raises ``ValueError`` unless they agree with the counts of ``evaluations``."""
    import numpy as np

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return tuple(_of_split(arrays, scored) for scored in evaluations)
    except (KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"the predictions cannot be read: {type(error).__name__} {error}") from None


def _of_split(arrays: NpzFile, scored: Evaluation) -> StoredPredictions:
    found = {}
    for name, kind in _TYPES.items():
        key = f"{scored.dataset}/{name}"
        if name == "rows" and key not in arrays:
            continue
        assert arrays.zip is not None
        size = arrays.zip.getinfo(f"{key}.npy").file_size
        if size > _HEADER + _LARGEST_ITEM * scored.total:
            raise ValueError(f"{key}: it would unpack to {size} bytes")
        array = found[name] = arrays[key]
        if array.dtype != kind or array.shape != (scored.total,):
            raise ValueError(f"{key}: {array.dtype} of shape {array.shape}, not {kind} of shape ({scored.total},)")
    split = StoredPredictions(scored.dataset, **found)
    if (correct := int(split.correct.sum())) != scored.correct:
        raise ValueError(f"{scored.dataset}: {correct} images are correct, but the result counts {scored.correct}")
    return split
