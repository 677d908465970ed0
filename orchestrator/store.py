"""The store: addressed artifacts, results and failures under one root.

Layout::

    <kind>/<readable-name>--<8hex>/manifest.json       an artifact counts as built when its manifest is there
    <kind>/<readable-name>--<8hex>/<attempt>/<file>    the files the manifest names, of the attempt that finished
    <kind>/<readable-name>--<8hex>/unfinished.*        how far its builder is, while there is one (snapshots.py)
    results/<cell id>.json                             one finished cell
    adapters/<cell id>/                                what it made, where that is small (:mod:`bolt.saving`)
    failures/<cell id or artifact>.json                one that could not be made; never served as a result
    logs/  reports/<grid>/  mlflow/  status/

Every builder writes into an attempt folder of its own and the manifest last, so a crash leaves no half-built
artifact behind that looks whole, and two builders of the same artifact cannot mix their files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cell import Cell
from orchestrator.errors import UserError
from orchestrator.files import Files
from orchestrator.identity import canonical_json, encode
from orchestrator.live.how_far import HowFar
from orchestrator.results import Failure, Result
from orchestrator.snapshots import Snapshots

HASHED_BYTES = 256 * 2**20
"""Files up to this size are checked by content when an artifact is verified; larger ones by size only."""

STALE_ATTEMPT_SECONDS = 24 * 3600.0
"""Nothing was written into an attempt's folder for so long: its builder is gone. Fine-tuning can take most of a day
before it writes anything."""

_UNWRITABLE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the disk takes no file of that size",
    errno.EROFS: "the disk is read-only",
}


class Corrupt(Exception):
    """An artifact whose files are not what its manifest says."""


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: where its files are, and what its builder noted down.

    Attributes:
        address: ``<kind>/<readable-name>--<8hex>``.
        identity: what it was built from, as plain JSON types.
        meta: what the builder noted (class names, counts, accuracies).
        files: file name -> (path in the store, bytes, sha256).
    """

    address: str
    identity: Any
    meta: dict[str, Any]
    files: dict[str, tuple[str, int, str]]
    store: Store

    def path(self, name: str) -> Path:
        """A file of the artifact on this machine's disk, fetched once per machine if the store is remote."""
        stored, size, _ = self.files[name]
        if self.store.files.is_local:
            return self.store.files.local_path(stored)
        local = self.store.cache / stored
        if not local.exists() or local.stat().st_size != size:
            self.store.files.download(stored, local)
        return local

    def verify(self) -> None:
        """Check every file's size, and its content up to ``HASHED_BYTES``. Raises :class:`Corrupt`."""
        for name, (stored, size, digest) in self.files.items():
            found = self.store.files.size(stored)
            if found != size:
                raise Corrupt(f"{self.address}/{name} has {found} bytes, its manifest says {size}")
            if size <= HASHED_BYTES and self.store.files.is_local and _sha256(self.path(name)) != digest:
                raise Corrupt(f"{self.address}/{name} is not the file that was built: its checksum differs")


class Store:
    """Artifacts, results and failures under one root folder or URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.files = Files(url)
        self.url = self.files.url

    @property
    def cache(self) -> Path:
        """Where this machine keeps fetched files of a remote store."""
        base = Path(os.environ.get("BOLT_CACHE", Path.home() / ".cache" / "bolt"))
        return base / hashlib.sha256(self.url.encode()).hexdigest()[:8]

    # -- artifacts ---------------------------------------------------------------------------------------------

    def artifact(self, address: str, identity: Any = None) -> Artifact | None:
        """The finished artifact at ``address``, or ``None``.

        With ``identity``, the one recorded inside must equal it: two things with one address is an error
        (``UserError``), never a silent rebuild. Raises :class:`Corrupt` for a manifest that cannot be read.
        """
        try:
            data = json.loads(self.files.read(f"{address}/manifest.json"))
            found = Artifact(
                address=data["address"],
                identity=data["identity"],
                meta=data["meta"],
                files={name: (path, size, digest) for name, (path, size, digest) in data["files"].items()},
                store=self,
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"{address}/manifest.json cannot be read: {error}") from None
        if identity is not None and canonical_json(found.identity) != canonical_json(identity):
            raise UserError(
                f"{address} in {self.url} was built from something else than what is asked for",
                hint="two things share one address: move that folder away, or use another --store",
            )
        return found

    def addresses(self, kind: str) -> list[str]:
        """Addresses of the finished artifacts of one kind."""
        found = (f"{kind}/{name}" for name in self.files.names(kind))
        return [address for address in found if self.files.exists(f"{address}/manifest.json")]

    def discard(self, address: str) -> None:
        """Make an artifact unbuilt, keeping its manifest aside for inspection."""
        self.files.move(f"{address}/manifest.json", f"{address}/manifest.corrupt-{uuid.uuid4().hex[:8]}.json")

    @contextmanager
    def building(self, address: str, identity: Any) -> Iterator[Builder]:
        """Build an artifact: write files into ``builder.folder``, note things in ``builder.meta``.

        When the block ends without an error, the files are hashed and the manifest is written; only then does the
        artifact exist. An error leaves nothing behind but the builder's last snapshot, if it kept one.

        Raises ``UserError`` when the disk is full or may not be written to.
        """
        attempt = f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
        with tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
            folder = self.files.local_path(f"{address}/{attempt}") if self.files.is_local else Path(scratch)
            said = HowFar(self.files, address)
            said.end()
            builder = Builder(folder, {}, said.tell, Snapshots(self.files, address, canonical_json(encode(identity))))
            try:
                _make(folder)
                yield builder
                files = {}
                for path in sorted(p for p in folder.iterdir() if p.is_file()):
                    stored = f"{address}/{attempt}/{path.name}"
                    if not self.files.is_local:
                        self.files.upload(path, stored)
                    files[path.name] = (stored, path.stat().st_size, _sha256(path))
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, OSError) and (reason := _UNWRITABLE.get(error.errno or 0)):
                    raise UserError(f"{address} cannot be built: {reason}", where=self.url) from error
                raise
            finally:
                said.end()
            body = {"address": address, "identity": encode(identity), "meta": builder.meta, "files": files}
            self.files.write(f"{address}/manifest.json", json.dumps(body, indent=1).encode())
        builder.snapshots.remove()
        self._sweep_attempts(address, attempt)

    def how_far(self, address: str) -> str:
        """How far the builder of an artifact is, as it said last; empty if it has not. Of local stores only."""
        return HowFar(self.files, address).read()

    def _sweep_attempts(self, address: str, finished: str) -> None:
        """Remove what crashed builders left; a younger attempt may still be someone's work."""
        if not self.files.is_local:
            return
        for entry in os.scandir(self.files.local_path(address)):
            if not entry.is_dir() or entry.name == finished:
                continue
            with suppress(FileNotFoundError):  # another builder sweeps as well
                written = max(item.stat().st_mtime for item in (Path(entry), *Path(entry).iterdir()))
                if time.time() - written > STALE_ATTEMPT_SECONDS:
                    shutil.rmtree(entry.path, ignore_errors=True)

    # -- results and failures ----------------------------------------------------------------------------------

    def write_result(self, result: Result) -> None:
        """Record a finished cell; a failure recorded earlier is forgotten."""
        self.files.write(f"results/{result.cell.id}.json", result.to_json().encode())
        self.files.remove(f"failures/{result.cell.id}.json")

    def result_ids(self) -> frozenset[str]:
        """Ids of the cells with a result file."""
        names = self.files.names("results")
        return frozenset(name[: -len(".json")] for name in names if name.endswith(".json") and name[0] != ".")

    def read_result(self, cell_id: str) -> Result:
        """One result. Raises ``FileNotFoundError`` or ``ValueError`` (not a whole result)."""
        result = Result.from_json(self.files.read(f"results/{cell_id}.json").decode("utf-8", "replace"))
        if result.cell.id != cell_id:
            raise ValueError(f"the file called {cell_id} holds {result.cell.id}")
        return result

    def read_results(self, cells: Iterable[Cell]) -> tuple[list[Result], list[str]]:
        """The results there are for ``cells``, and the ids whose file is damaged.

        A damaged file is moved aside (``results/<id>.json.damaged``), which makes its cell unfinished again.
        """
        there = self.result_ids()
        results, damaged = [], []
        for cell in cells:
            if cell.id not in there:
                continue
            try:
                results.append(self.read_result(cell.id))
            except ValueError:
                self.files.move(f"results/{cell.id}.json", f"results/{cell.id}.json.damaged")
                damaged.append(cell.id)
        return results, damaged

    def write_adapter(self, cell_id: str, files: Mapping[str, bytes]) -> None:
        """Keep a finished cell's adapter; its last file, which holds the others' checksums, makes it count."""
        for name, content in files.items():
            self.files.write(f"adapters/{cell_id}/{name}", content)

    def adapter_folder(self, cell_id: str) -> Path | None:
        """The folder of a cell's adapter on this machine's disk, fetched if the store is remote; ``None``: not kept."""
        stored = f"adapters/{cell_id}"
        names = [name for name in self.files.names(stored) if not name.startswith(".")]
        if self.files.is_local:
            return self.files.local_path(stored) if names else None
        for name in names:
            self.files.download(f"{stored}/{name}", self.cache / stored / name)
        return self.cache / stored if names else None

    def write_failure(self, failure: Failure) -> None:
        """Record that a cell or an artifact could not be made."""
        self.files.write(f"failures/{failure.id.replace('/', '.')}.json", failure.to_json().encode())

    def read_failures(self) -> dict[str, Failure]:
        """Every recorded failure by id; a damaged record is shown as such rather than hidden."""
        failures = {}
        for name in self.files.names("failures"):
            if not name.endswith(".json") or name.startswith("."):
                continue
            try:
                failure = Failure.from_json(self.files.read(f"failures/{name}").decode("utf-8", "replace"))
            except ValueError as error:
                failure = Failure(name[: -len(".json")], f"damaged failure record: {error}", "", "", 1, "")
            failures[failure.id] = failure
        return failures

    def read_failure(self, failure_id: str) -> Failure | None:
        """One failure record, ``None`` if there is none that can be read."""
        try:
            data = self.files.read(f"failures/{failure_id.replace('/', '.')}.json")
            return Failure.from_json(data.decode("utf-8", "replace"))
        except (FileNotFoundError, ValueError):
            return None

    def write_log(self, failure_id: str, text: str) -> str:
        """Keep the log of a failed cell or artifact; returns its path or URL."""
        name = f"logs/{failure_id.replace('/', '.')}.log"
        self.files.write(name, text.encode())
        return self.files.path(name) if self.files.is_local else f"{self.url.rstrip('/')}/{name}"

    def forget_failure(self, failure_id: str) -> None:
        """Remove a failure record, so that what it stands for counts as not yet tried."""
        self.files.remove(f"failures/{failure_id.replace('/', '.')}.json")


@dataclass(frozen=True)
class Builder:
    """Where a builder writes.

    Attributes:
        folder: for files.
        meta: what it wants to note down.
        progress: to be called with how much is done, of how much.
        snapshots: where a long training leaves its state, to go on from when it is started again.
    """

    folder: Path
    meta: dict[str, Any]
    progress: Callable[[int, int], None]
    snapshots: Snapshots


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError) as error:
        raise UserError(f"the store cannot be written to: {error}", where=str(folder.parent.parent)) from None


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
