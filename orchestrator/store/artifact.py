"""A finished artifact: what its manifest says, where its files are on this machine, and whether they are whole.

A manifest comes from the store, where anybody who may write there can have written it, so nothing in it is believed
before it is looked at: its files lie in the artifact's own folder, under plain names, inside the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.store.files import Files
from orchestrator.store.node_cache import ChecksumMismatch, node_cache, sha256, wanted
from orchestrator.util.errors import UserError
from orchestrator.util.identity import canonical_json, encode

HASHED_BYTES = 256 * 2**20
"""Files up to this size are checked by content when an artifact is verified; larger ones by size only."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class CorruptArtifact(Exception):
    """An artifact whose files are not what its manifest says."""


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: where its files are, and what its builder noted down.

    Attributes:
        address: ``<kind>/<readable-name>--<8hex>``.
        identity: what it was built from, as plain JSON types.
        meta: what the builder noted (class names, counts, accuracies).
        files: file name -> (path in the store, bytes, sha256).
        tags: file name -> the tag that a remote store gave its content when it was written.
    """

    address: str
    identity: Any
    meta: dict[str, Any]
    files: dict[str, tuple[str, int, str]]
    inside: Files = field(compare=False)
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Files, address: str) -> Artifact | None:
        """The artifact at ``address``, or ``None``. Raises :class:`CorruptArtifact` for what is no manifest of it."""
        try:
            data = json.loads(files.read(f"{address}/manifest.json"))
            if data["address"] != address:
                raise ValueError(f"it is of {data['address']}")
            listed = {str(name): _listed(address, name, entry, files) for name, entry in data["files"].items()}
            tags = {str(name): str(tag) for name, tag in data.get("tags", {}).items()}
            canonical_json(data["identity"])
            return cls(address, data["identity"], dict(data["meta"]), listed, files, tags)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptArtifact(f"{address}/manifest.json cannot be read: {error}") from None

    def manifest(self) -> bytes:
        """The manifest's text; written last, it makes the artifact exist."""
        body = {
            "address": self.address,
            "identity": encode(self.identity),
            "meta": self.meta,
            "files": self.files,
            "tags": self.tags,
        }
        return json.dumps(body, indent=1).encode()

    def path(self, name: str) -> Path:
        """A file of the artifact on this machine's disk, fetched once per machine where it is elsewhere.

        Raises :class:`CorruptArtifact` for a file that is gone, or is not the one that was built; it counts as unbuilt
        then. ``UserError`` for one that leads out of the store, and for a cache that cannot hold it.
        """
        stored, size, digest = self.files[name]
        if self.inside.is_local:
            path = self._in_folder(stored)
            if not wanted():
                return path
        try:
            return node_cache().get(digest, size, lambda part: self.inside.download(stored, part))
        except (ChecksumMismatch, FileNotFoundError):
            discard(self.inside, self.address)
            raise CorruptArtifact(f"{self.address}/{name} is gone, or not the file that was built") from None

    def verify(self) -> None:
        """Check every file's size, and its content up to ``HASHED_BYTES``. Raises :class:`CorruptArtifact`.

        A remote store's tag of a content stands for it; where that has changed, the file is fetched and looked at.
        """
        sizes = self._sizes()
        for name, (stored, size, digest) in self.files.items():
            found, tag = sizes.get(stored, (None, ""))
            if found != size:
                raise CorruptArtifact(f"{self.address}/{name} has {found} bytes, its manifest says {size}")
            if self.inside.is_local:
                if size <= HASHED_BYTES and sha256(self._in_folder(stored)) != digest:
                    raise CorruptArtifact(f"{self.address}/{name} is not the file that was built: its checksum differs")
            elif tag != self.tags.get(name, tag) and self._stored_digest(stored) != digest:
                raise CorruptArtifact(f"{self.address}/{name} is not the file that was built: its checksum differs")

    def _sizes(self) -> dict[str, tuple[int | None, str]]:
        """(bytes, tag) of each file by its path in the store."""
        if self.inside.is_local:
            return {stored: (self.inside.size(stored), "") for stored, _, _ in self.files.values()}
        folders = {stored.rpartition("/")[0] for stored, _, _ in self.files.values()}
        return {
            f"{folder}/{name}": (found.size, found.tag)
            for folder in folders
            for name, found in self.inside.versions(folder).items()
        }

    def _stored_digest(self, stored: str) -> str:
        """The checksum of what a remote store has, whatever this machine's cache has."""
        with node_cache().scratch() as folder:
            self.inside.download(stored, folder / "stored")
            return sha256(folder / "stored")

    def _in_folder(self, stored: str) -> Path:
        path = self.inside.local_path(stored)
        real, root = os.path.realpath(path), os.path.realpath(self.inside.root)
        if os.path.commonpath((real, root)) != root:
            raise UserError(
                f"{path} is a link that leads out of the store",
                where=self.inside.url,
                hint="nothing outside of a store is read for it; link the whole store instead, or move what is linked",
            )
        return path


def discard(files: Files, address: str) -> None:
    """Make an artifact unbuilt, keeping its manifest aside for inspection; another process may have done so."""
    with contextlib.suppress(FileNotFoundError):
        files.move(f"{address}/manifest.json", f"{address}/manifest.corrupt-{uuid.uuid4().hex[:8]}.json")


def _listed(address: str, name: str, entry: Any, files: Files) -> tuple[str, int, str]:
    """One entry of a manifest's files. Raises ``ValueError`` or ``TypeError`` for one that no builder wrote."""
    stored, size, digest = entry
    if not isinstance(stored, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{name!r} is not listed as a path, a size and a checksum")
    files.path(stored)
    if not stored.startswith(f"{address}/") or stored.rpartition("/")[2] != name:
        raise ValueError(f"{name!r} is not in the artifact's own folder")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{name!r} has no checksum")
    return stored, size, digest
