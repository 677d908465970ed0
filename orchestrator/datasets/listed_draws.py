"""Read the few-shot draws that Dassl and 2SFS write into files, and find the listed images in the dataset.

Dassl writes ``split_fewshot/shot_K-seed_S.pkl`` beside a dataset's split file. The pickle has a list of ``Datum``
objects for each part. 2SFS publishes ``shot_K-seed_S_train.jsonl`` and ``..._val.jsonl`` in the same folder. The files
have the image paths of the machine that wrote them, so an image is found by the end of its path.
"""

import io
import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bolt.clip.torch_files import Foreign, UnsafeFile, read_pickle
from orchestrator.datasets.part import Part, RawDataset
from orchestrator.util.errors import UserError, one_line, shorten

LARGEST_FILE = 256 * 2**20
"""Largest size in bytes of a draw's file. A draw of 16 images of each class of ImageNet takes three million bytes."""


def read_draw(raw: RawDataset, files: tuple[Path, ...]) -> dict[str, NDArray[np.int64]]:
    """Return the positions of the listed images in ``train``, and in ``val`` if files and dataset have that part.

    The positions keep the order of the files.

    Raises ``UserError`` for a file that cannot be read or holds anything but image paths and labels, and for an image
    that the dataset does not have or has with another label.
    """
    listed: dict[str, list[tuple[str, int]]] = {}
    for path in files:
        if path.stat().st_size > LARGEST_FILE:
            raise _damaged(path, "has more than 256 MiB")
        try:
            if path.suffix == ".pkl":
                found = read_pickle(io.BytesIO(path.read_bytes()))  # loads no class that the pickle names
                listed |= {str(part): [_row(datum) for datum in data] for part, data in found.items()}
            else:
                lines = path.read_text(encoding="utf-8").splitlines()
                listed[path.stem.rpartition("_")[2]] = [_pair(json.loads(line)) for line in lines if line.strip()]
        except Exception as error:  # for damaged content, pickle and the look-ups raise errors of many classes
            raise _damaged(path, f"cannot be read: {one_line(error)}") from None
    parts = {"train": raw.train, "val": raw.validation}
    drawn = {name: _positions(rows, part, files[0]) for name, rows in listed.items() if (part := parts.get(name))}
    if "train" not in drawn:
        raise _damaged(files[0], "has no part train")
    return drawn


def _row(datum: Any) -> tuple[str, int]:
    """Return the path and the label in an object of Dassl's pickle. Raises ``UnsafeFile`` if it is no ``Datum``."""
    if not isinstance(datum, Foreign) or not datum.class_name.endswith(".Datum"):
        raise UnsafeFile(f"it holds {getattr(datum, 'class_name', type(datum).__name__)}, not Dassl's Datum")
    return _pair(datum.state)


def _pair(fields: Any) -> tuple[str, int]:
    image, label = fields["_impath"], fields["_label"]
    if not isinstance(image, str) or type(label) is not int:
        raise UnsafeFile(f"_impath and _label are {shorten(repr((image, label)))}, not a path and a number")
    return image, label


def _positions(rows: list[tuple[str, int]], part: Part, path: Path) -> NDArray[np.int64]:
    """Return the positions in ``part`` of the images in ``rows``. ``path``: the file that lists them.

    A listed path must end in an image's path in the dataset's folder. This path may lack its first folder, which code
    bases name differently, if the rest fits one image only.
    """
    pieces_of = [PurePosixPath(part.origin(i)).parts for i in range(len(part))]
    shorter = Counter(pieces[1:] for pieces in pieces_of)
    known = {pieces[1:]: i for i, pieces in enumerate(pieces_of) if shorter[pieces[1:]] == 1}
    known |= {pieces: i for i, pieces in enumerate(pieces_of)}
    lengths = sorted({len(key) for key in known}, reverse=True)
    found = []
    for image, label in rows:
        pieces = PurePosixPath(image.replace("\\", "/")).parts
        position = next((known[tail] for length in lengths if (tail := pieces[-length:]) in known), None)
        if position is None:
            raise _damaged(path, f"lists {shorten(image)}, which the dataset does not have")
        if part.labels[position] != label:
            raise _damaged(path, f"gives {shorten(image)} the label {label}; the dataset has {part.labels[position]}")
        found.append(position)
    return np.array(found, dtype=np.int64)


def _damaged(path: Path, what: str) -> UserError:
    hint = "write the list again, or use another draw"
    return UserError(f"the list of drawn images {what}", where=str(path), hint=hint)
