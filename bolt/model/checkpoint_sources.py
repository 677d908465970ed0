"""Source models that are read from checkpoint files, one file at a time.

Shape legend: m, n a weight matrix's rows and columns.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_conversion import FAR, convert_image_tower, distance_moved
from bolt.clip.checkpoint_files import SUFFIXES, checkpoint_files, checkpoint_name, files_digest
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.tensor_names import TensorMismatch, matrix_names
from bolt.spectral.directions import Directions, top_directions, truncate_directions
from bolt.spectral.sources import Sources

_INITIAL_TOP_K = 12
"""Least number of singular directions that are computed per source and matrix: the number that BOLT uses by default."""


class CheckpointSources(Sources):
    """Source models in checkpoints of any layout that :mod:`bolt.clip.checkpoint_conversion` knows.

    The leading singular directions of every source's task vector stay in memory, and so does the sum of the task
    vectors. The files are read again if a method needs more directions or whole task vectors.

    Args:
        backbone: the CLIP from which the sources were fine-tuned.
        files: name of each source -> its checkpoint, a file or a folder.

    Raises:
        ValueError: if ``files`` is empty.
    """

    def __init__(self, backbone: Backbone, files: Mapping[str, Path]) -> None:
        if not files:
            raise ValueError("there is no checkpoint to read a source from")
        self._files = dict(files)
        self._frozen = {name: tensor.cpu() for name, tensor in backbone.tower.state_dict_open_clip().items()}
        self._top_k = 0
        self._directions: dict[str, list[Directions]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the order given."""
        return tuple(self._files)

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

        Raises ``UnreadableCheckpoint`` if the source's file cannot be read, and ``TensorMismatch`` if it does not hold
        the backbone's image tower, or holds the pre-trained tower itself. Warns if the tower is far from that one.
        """
        tuned = convert_image_tower(read_checkpoint(self._files[source]), self._frozen)
        try:
            distance = distance_moved(tuned, self._frozen)
        except TensorMismatch as error:
            raise TensorMismatch(f"{self._files[source]}: {error}; leave it out: leave_out=[{source!r}]") from None
        if distance > FAR:
            what = f"{self._files[source]} is {distance:.2f} norms from the pre-trained tower"
            warnings.warn(f"{what}: was it fine-tuned from other weights?", stacklevel=2)
        return {name: tuned.tensors[name] - frozen for name, frozen in self._frozen.items()}

    def file_digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each checkpoint. If a checkpoint has several files, their contents are concatenated."""
        return self._file_digests

    @cached_property
    def _file_digests(self) -> tuple[str, ...]:
        return tuple(files_digest(checkpoint_files(path)) for path in self._files.values())


def checkpoint_paths(folder: Path) -> dict[str, Path]:
    """Map the names of a folder's checkpoints to their paths.

    Every sub-folder and every file with a checkpoint's suffix counts as a checkpoint, unless it is hidden.

    Raises ``FileNotFoundError`` if there is no folder or no checkpoint.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give a folder with a checkpoint of each source model")
    entries = sorted(folder.iterdir())
    found = {
        checkpoint_name(entry): entry
        for entry in entries
        if not entry.name.startswith(".") and (entry.is_dir() or entry.name.lower().endswith(SUFFIXES))
    }
    if not found:
        raise FileNotFoundError(f"{folder} holds no checkpoint: neither a folder nor a {', '.join(SUFFIXES)} file")
    return found
