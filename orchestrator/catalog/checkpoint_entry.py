"""Adopted checkpoints: fine-tuned models of others that serve as sources.

::

    checkpoints:
      vit-b-32:                                   # a backbone's key
        eurosat: {file: eurosat.pt, sha256: ...}  # a dataset's key; the path is relative to the catalog file
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from bolt.clip.checkpoint_files import checkpoint_files
from orchestrator.catalog.fields import Key, StrictModel
from orchestrator.catalog.location import Location
from orchestrator.catalog.references import file_digest
from orchestrator.catalog.validation import as_mapping, validated


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


def flatten_checkpoints(section: Mapping[str, Any], location: Location, folder: Path) -> dict[str, Any]:
    """``backbone/dataset`` -> fields, for the section ``checkpoints`` of one file. Paths become absolute.

    Args:
        folder: that of the catalog file.

    Raises ``UserError`` if the section is not two levels of names.
    """
    flat = {}
    for backbone, named in section.items():
        for dataset, fields in as_mapping(named or {}, location / backbone).items():
            fields = as_mapping(fields, location / backbone / dataset)
            if isinstance(fields.get("file"), str):
                fields = {**fields, "file": str(folder / Path(fields["file"]).expanduser())}
            flat[f"{backbone}/{dataset}"] = fields
    return flat


def read_checkpoints(
    raw: Mapping[str, tuple[Any, Location]], backbones: Mapping[str, Any], datasets: Mapping[str, Any]
) -> dict[tuple[str, str], CheckpointEntry]:
    """(backbone, dataset) -> entry, from the flattened sections of all files and their locations.

    Raises ``UserError`` for an unknown backbone or dataset, and for wrong fields.
    """
    entries = {}
    for key, (value, location) in raw.items():
        backbone, _, dataset = key.partition("/")
        section = Location(location.file, "checkpoints")
        if backbone not in backbones:
            raise section.unknown_name("backbone", backbone, backbones)
        if dataset not in datasets:
            raise (section / backbone).unknown_name("dataset", dataset, datasets)
        for name in ("backbone", "dataset"):
            if name in value:
                raise (location / name).error("the keys say it; it is not given again")
        fields = {"backbone": backbone, "dataset": dataset, **value}
        entries[backbone, dataset] = validated(CheckpointEntry, fields, location)
    return entries


def checkpoint_digest(path: Path) -> str:
    """The SHA-256 of a checkpoint: of its file, or of its parts one after the other.

    Raises ``UnreadableCheckpoint`` if it does not exist.
    """
    return file_digest(*checkpoint_files(path))
