"""What a catalog file may say of checkpoints that are sources as they are, instead of models fine-tuned here.

::

    checkpoints:
      vit-b-32:                                   # a backbone's key
        eurosat: {file: eurosat.pt, sha256: ...}  # a dataset's key; the path is relative to the catalog file
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from orchestrator.catalog.fields import Name, StrictModel
from orchestrator.catalog.location import Location
from orchestrator.catalog.validation import as_mapping, validated
from orchestrator.util.errors import UserError, unknown_name


class CheckpointEntry(StrictModel):
    """One adopted checkpoint.

    Attributes:
        backbone, dataset: the keys it stands under.
        file: the file, the index of one in parts, or the folder that holds either; absolute once it is read.
        sha256: of its content, as :func:`checkpoint_digest` says it; part of the source's identity.
        note: where it is from.
    """

    backbone: Name
    dataset: Name
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    note: str = ""

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.file)


def flatten_checkpoints(section: Mapping[str, Any], location: Location, folder: Path) -> dict[str, Any]:
    """``backbone/dataset`` -> fields, of a file's section; paths are made absolute, being relative to ``folder``.

    Raises ``UserError`` for what is not two levels of names.
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
    """(backbone, dataset) -> entry, from what :func:`flatten_checkpoints` gives of all files, and where it stands.

    Raises ``UserError`` for an unknown backbone or dataset (with the nearest ones) and for wrong fields.
    """
    found = {}
    for key, (value, location) in raw.items():
        backbone, _, dataset = key.partition("/")
        section = Location(location.file, "checkpoints")
        if backbone not in backbones:
            raise unknown_name("backbone", backbone, backbones, where=str(section))
        if dataset not in datasets:
            raise unknown_name("dataset", dataset, datasets, where=str(section / backbone))
        for name in ("backbone", "dataset"):
            if name in value:
                raise UserError("the keys say it; it is not given again", where=str(location / name))
        found[backbone, dataset] = validated(
            CheckpointEntry, {"backbone": backbone, "dataset": dataset, **value}, location
        )
    return found


def checkpoint_digest(path: Path) -> str:
    """The sha256 of a checkpoint's content: of its file, or of its parts one after the other.

    Raises ``UnreadableCheckpoint`` when it is not there.
    """
    files = checkpoint_files(path)
    stats = [file.stat() for file in files]
    return _digest(files, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))


def missing_checkpoint(entry: CheckpointEntry) -> UserError | None:
    """``None`` when an adopted checkpoint's file is there; otherwise the error that names it."""
    try:
        checkpoint_files(entry.path)
    except UnreadableCheckpoint as error:
        return UserError(
            f"the checkpoint of {entry.dataset} for {entry.backbone} is not there: {error}",
            hint="put it there, or adopt it anew: python -m orchestrator sources adopt PATH "
            f"--backbone {entry.backbone} --dataset {entry.dataset} --catalog FILE",
        )
    return None


@cache
def _digest(files: tuple[Path, ...], state: tuple[tuple[int, int], ...]) -> str:
    """``state`` (sizes and times) makes a file that has changed another key."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
