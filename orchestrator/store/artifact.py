"""A finished artifact: its manifest, its files on this machine, and the check that the files are intact.

Anybody with write access to the store can write a manifest. So a manifest is validated before it is used: its files
must be in the folder of the artifact, under plain names.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PrivateAttr

from orchestrator.store.files import FOLDER, Files
from orchestrator.store.node_cache import ChecksumMismatch, node_cache
from orchestrator.store.results import Checksum, Count, field_named
from orchestrator.util.identity import canonical_json, encode, file_digest

HASHED_BYTES = 256 * 2**20
"""Verification checks the content of files up to this size in bytes, and only the size of larger files."""


class CorruptArtifact(Exception):
    """A file of an artifact is missing or differs from its manifest, or the manifest cannot be read."""


class Artifact(BaseModel, strict=True, frozen=True):
    """A finished artifact: the content of its ``manifest.json``, and the store that has its files.

    Attributes:
        address: ``<kind>/<readable-name>--<8hex>``.
        identity: everything that the content depends on, as plain JSON types.
        meta: facts that the builder recorded (class names, counts, accuracies).
        files: file name -> (path in the store, size in bytes, sha256).
        tags: file name -> the tag (ETag) that a remote store gave the file when it was written.
    """

    address: str
    identity: Any
    meta: dict[str, Any]
    files: dict[str, tuple[str, Count, Checksum]]
    tags: dict[str, str] = {}
    _store: Files = PrivateAttr()

    @classmethod
    def read(cls, files: Files, address: str) -> Artifact | None:
        """Return the artifact at ``address``, or ``None``. Raises :class:`CorruptArtifact` for an invalid manifest."""
        try:
            with field_named():
                found = cls.model_validate_json(files.read(f"{address}/manifest.json"))
            if found.address != address:
                raise ValueError(f"address: the manifest belongs to {found.address}")
            for name, (stored, _, _) in found.files.items():
                files.path(stored)
                if not stored.startswith(f"{address}/") or stored.rpartition("/")[2] != name:
                    raise ValueError(f"{name!r} is not in the artifact's own folder")
            canonical_json(found.identity)
            found._store = files
            return found
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptArtifact(f"{address}/manifest.json cannot be read: {error}") from None

    def manifest(self) -> bytes:
        """Return the content of ``manifest.json``."""
        return json.dumps({**dict(self), "identity": encode(self.identity)}, indent=1).encode()

    def path(self, name: str) -> Path:
        """Return the path of a file of the artifact on this machine's disk.

        A remote file is downloaded once per machine. A file of a local store is returned unchecked, unless
        ``BOLT_CACHE`` is set.

        Raises :class:`CorruptArtifact`, and discards the artifact, if a checked file is missing or was changed.
        Raises ``UserError`` for a link out of the store, and for a cache that cannot hold the file.
        """
        stored, size, digest = self.files[name]
        if self._store.is_local:
            path = self._store.path_inside(stored)
            if not os.environ.get(FOLDER):
                return path
        try:
            return node_cache().get(digest, size, lambda part: self._store.download(stored, part))
        except (ChecksumMismatch, FileNotFoundError):
            discard(self._store, self.address)
            raise CorruptArtifact(f"{self.address}/{name} is missing, or its checksum differs") from None

    def verify(self) -> None:
        """Check the size of every file, and the content of files up to ``HASHED_BYTES`` in a local store.

        A file of a remote store is downloaded and hashed only if its tag has changed. Raises :class:`CorruptArtifact`.
        """
        versions = cache(self._store.versions)  # one listing: the files of an attempt are in one folder
        for name, (stored, size, digest) in self.files.items():
            found = versions(stored.removesuffix(f"/{name}")).get(name)
            if found is None or found.size != size:
                has = f"has {found.size} bytes" if found else "is missing"
                raise CorruptArtifact(f"{self.address}/{name} {has}, but its manifest says {size} bytes")
            if self._store.is_local:
                changed = size <= HASHED_BYTES and file_digest(self._store.path_inside(stored)) != digest
            elif changed := found.tag != self.tags.get(name, found.tag):
                with node_cache().scratch() as folder:  # not read from the cache, which may have an older copy
                    self._store.download(stored, folder / name)
                    changed = file_digest(folder / name) != digest
            if changed:
                raise CorruptArtifact(f"{self.address}/{name} was changed: its checksum differs")


def discard(files: Files, address: str) -> None:
    """Rename an artifact's manifest, so that the artifact counts as not built. A missing manifest is no error."""
    with contextlib.suppress(FileNotFoundError):
        files.move(f"{address}/manifest.json", f"{address}/manifest.corrupt-{uuid.uuid4().hex[:8]}.json")
