"""Adopted checkpoints: fine-tuned models of others that serve as sources.

::

    checkpoints:
      vit-b-32:                                   # a backbone's key
        eurosat: {file: eurosat.pt, sha256: ...}  # a dataset's key; the path is relative to the catalog file
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bolt.clip.checkpoint_files import checkpoint_files
from orchestrator.catalog.references import file_digest
from orchestrator.catalog.validation import Key, StrictModel


class CheckpointEntry(StrictModel):
    """A fine-tuned checkpoint made elsewhere, used as a source.

    Attributes:
        backbone, dataset: the catalog's keys of the backbone and of the dataset it was fine-tuned on.
        file: path of the file, of the index of a checkpoint in parts, or of the folder that holds either. Absolute
            once the catalog is read.
        sha256: digest of its content, see :func:`checkpoint_digest`; part of the source's identity.
        note: where it comes from.
    """

    backbone: Key
    dataset: Key
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    note: str = ""

    @property
    def path(self) -> Path:
        """``file`` as a path."""
        return Path(self.file)


def checkpoint_digest(path: Path) -> str:
    """The SHA-256 of a checkpoint: of its file, or of its parts one after the other.

    Raises ``UnreadableCheckpoint`` if it does not exist.
    """
    return file_digest(*checkpoint_files(path))
