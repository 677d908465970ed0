"""Source models that are read from checkpoint files, one file at a time.

Shape legend: m, n a weight matrix's rows and columns.
"""

import os
import warnings
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_files import SUFFIXES, UnreadableCheckpoint, checkpoint_files, checkpoint_name, files_digest
from bolt.clip.fine_tuned import examine_checkpoint
from bolt.clip.tensor_names import TensorMismatch, matrix_names
from bolt.spectral.directions import Directions, top_directions, truncate_directions
from bolt.spectral.sources import Sources

_INITIAL_TOP_K = 12
"""Least number of singular directions that are computed per source and matrix: the number that BOLT uses by default."""

_LARGE = 2**20
"""Size of a file, in bytes, from which it may hold weights, whatever its name."""


class CheckpointSources(Sources):
    """Source models in checkpoints of any layout that :mod:`bolt.clip.checkpoint_conversion` knows.

    The leading singular directions of every source's task vector stay in memory, and so does the sum of the task
    vectors. The files are read again if a method needs more directions or whole task vectors. A warning names two
    sources that are the same file or, as soon as both are read, hold the same weights.

    Args:
        backbone: the CLIP from which the sources were fine-tuned.
        files: name of each source -> its checkpoint, a file or a folder.

    Attributes:
        backbone: the digest of the backbone.

    Raises:
        ValueError: if ``files`` is empty.
    """

    def __init__(self, backbone: Backbone, files: Mapping[str, Path]) -> None:
        if not files:
            raise ValueError("there is no checkpoint to read a source from")
        self._files = dict(files)
        self._first: dict[Hashable, str] = {}
        self._read: dict[str, object] = {}
        for name, path in files.items():
            self._warn_of_copy(name, os.path.realpath(path))
        self.backbone, self._shape = backbone.digest, backbone.tower.shape
        self._frozen = {name: tensor.cpu() for name, tensor in backbone.tower.state_dict_open_clip().items()}
        self._top_k = 0
        self._directions: dict[str, list[Directions]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the order given."""
        return tuple(self._files)

    @property
    def replaced(self) -> list[str]:
        """Names of the sources whose files have changed since they were read. What stays in memory is the former."""
        return [name for name, read in self._read.items() if self._files[name].exists() and self._state(name) != read]

    def _state(self, source: str) -> object:
        return [
            (file, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in checkpoint_files(self._files[source])
        ]

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        """Return the leading ``top_k`` singular directions of each source's task vector at one matrix (m, n).

        The first call reads all files.
        """
        if top_k > self._top_k:
            kept, found = max(top_k, _INITIAL_TOP_K), {name: list[Directions]() for name in matrix_names(self._frozen)}
            for source in self._files:
                vector = self.task_vector(source)
                for name, directions in found.items():
                    directions.append(top_directions(vector[name], kept))
            self._directions, self._top_k = found, kept
        return truncate_directions(self._directions[matrix], top_k)

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        """Return one source's task vector, by open_clip's names of the tensors.

        Warns if the source was probably fine-tuned from other weights, or equals another source. Raises
        ``UnreadableCheckpoint`` if the source's file cannot be read, and ``TensorMismatch`` if it does not hold an
        image tower that was fine-tuned from the backbone's.
        """
        try:
            state = self._state(source)
            tuned = examine_checkpoint(self._files[source], self._frozen, self._shape)
        except (TensorMismatch, UnreadableCheckpoint) as error:
            raise type(error)(f"{error}; or leave it out: leave_out=[{source!r}]") from None
        self._read.setdefault(source, state)
        if tuned.warning:
            warnings.warn(f"{self._files[source]}: {tuned.warning}", stacklevel=2)
        vector = {name: tuned.tensors[name] - frozen for name, frozen in self._frozen.items()}
        self._warn_of_copy(source, tuple(float(tensor.sum()) for tensor in vector.values()))
        return vector

    def file_digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each checkpoint. If a checkpoint has several files, their contents are concatenated."""
        return self._file_digests

    @cached_property
    def _file_digests(self) -> tuple[str, ...]:
        digests = tuple(files_digest(checkpoint_files(path)) for path in self._files.values())
        for name, digest in zip(self._files, digests, strict=True):
            self._warn_of_copy(name, digest)
        return digests

    def _warn_of_copy(self, source: str, mark: Hashable) -> None:
        """Warn if another source has the same ``mark``: a path, a file's digest, or the sums of a task vector."""
        if (first := self._first.setdefault(mark, source)) != source:
            what = f"the sources {first} and {source} are the same checkpoint, so it counts twice"
            warnings.warn(f"{what}; leave one out: leave_out=[{source!r}]", stacklevel=3)


def checkpoint_paths(folder: Path) -> dict[str, Path]:
    """Map the names of a folder's checkpoints to their paths.

    Every sub-folder and every file with a checkpoint's suffix counts as a checkpoint, unless it is hidden. A warning
    names other files that are as large as weights.

    Raises ``FileNotFoundError`` if there is no folder or no checkpoint, and ``ValueError`` if two checkpoints have the
    same name.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give a folder with a checkpoint of each source model")
    found: dict[str, Path] = {}
    unused = list[str]()
    for entry in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if entry.is_dir() or entry.name.lower().endswith(SUFFIXES):
            if (first := found.setdefault(checkpoint_name(entry), entry)) != entry:
                raise ValueError(f"{first} and {entry.name} are both named {checkpoint_name(entry)}: rename one")
        elif entry.is_file() and entry.stat().st_size >= _LARGE:
            unused.append(entry.name)
    if unused:
        what = f"{folder}: not used, because a checkpoint ends in {', '.join(SUFFIXES)}: {', '.join(unused)}"
        warnings.warn(what, stacklevel=3)
    if not found:
        raise FileNotFoundError(f"{folder} holds no checkpoint: neither a folder nor a {', '.join(SUFFIXES)} file")
    return found
