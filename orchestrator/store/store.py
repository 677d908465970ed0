"""The store as one object: artifacts by address, results and failures by id."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from orchestrator.store.artifact import Artifact, CorruptArtifact, discard
from orchestrator.store.building import Builder, BuildProgress, building
from orchestrator.store.files import Files, FileVersion, local_folder, read_small_files
from orchestrator.store.predictions import StoredPredictions, checked_predictions, predictions_file
from orchestrator.store.results import Failure, Result
from orchestrator.util.errors import UserError
from orchestrator.util.identity import canonical_json

Versions = tuple[FileVersion, FileVersion | None]
"""The versions of a cell's result and of its predictions, if it has some."""

BATCH = 1000
"""Number of result files that are read before they are parsed."""


class Store:
    """Artifacts, results and failures under one root folder or URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.files = Files(url)
        self.url = self.files.url
        self._results: dict[str, tuple[Versions, Result]] = {}

    # -- artifacts ---------------------------------------------------------------------------------------------

    def artifact(self, address: str, identity: Any = None) -> Artifact | None:
        """Return the finished artifact at ``address``, or ``None``.

        If ``identity`` is given, the recorded one must equal it: two artifacts with one address are an error
        (``UserError``) and never a silent rebuild. Raises :class:`CorruptArtifact` for a manifest that cannot be read.
        """
        found = Artifact.read(self.files, address)
        if found is not None and identity is not None and canonical_json(found.identity) != canonical_json(identity):
            raise UserError(
                f"{address} in {self.url} already holds another artifact: its recorded identity differs",
                hint=f"move {self.url}/{address} away",
            )
        return found

    def is_intact(self, address: str, identity: Any = None) -> bool:
        """Whether an intact artifact exists; a damaged one is discarded. Raises ``UserError`` as :meth:`artifact`."""
        try:
            found = self.artifact(address, identity)
            if found is not None:
                found.verify()
            return found is not None
        except CorruptArtifact:
            discard(self.files, address)
            return False

    def addresses(self, kind: str) -> list[str]:
        """Addresses of the finished artifacts of one kind."""
        paths = (path.split("/") for path in self.files.versions(kind))  # one listing instead of a request for each
        return sorted(f"{kind}/{parts[0]}" for parts in paths if parts[1:] == ["manifest.json"])

    def building(self, address: str, identity: Any) -> AbstractContextManager[Builder]:
        """See :func:`orchestrator.store.building.building`."""
        return building(self.files, address, identity)

    def build_progress(self, address: str) -> str:
        """See :meth:`orchestrator.store.building.BuildProgress.read`."""
        return BuildProgress(self.files, address).read()

    # -- results and failures ----------------------------------------------------------------------------------

    def write_result(self, result: Result, predictions: bytes | None = None) -> None:
        """Record a finished cell; an earlier failure record of it is removed.

        ``predictions``, the content of the file that ``result.predictions`` describes, is written first, so that a
        result never exists without its predictions.
        """
        if predictions is not None:
            self.files.write(f"results/{result.cell.id}.npz", predictions)
        self.files.write(f"results/{result.cell.id}.json", result.to_json().encode())
        self.files.remove(f"failures/{result.cell.id}.json")

    def result_ids(self) -> frozenset[str]:
        """Ids of the cells with a result file."""
        return frozenset(self.files.records("results"))

    def read_result(self, cell_id: str) -> Result:
        """One result. Raises ``FileNotFoundError``, or ``ValueError`` for a damaged file."""
        return Result.of_cell(cell_id, self.files.read(f"results/{cell_id}.json"))

    def read_results(self, cell_ids: Iterable[str]) -> tuple[list[Result], list[str]]:
        """Return the existing results of cells, and the ids whose result or predictions are damaged.

        Files that have not changed since this object read them are not read again. A damaged result is renamed to
        ``results/<id>.json.damaged``, which makes its cell unfinished again; so is one whose predictions are missing or
        damaged. Of predictions in a remote store only the size is checked here.
        """
        listed = self.files.versions("results")
        wanted = {
            cell_id: (listed[f"{cell_id}.json"], listed.get(f"{cell_id}.npz"))
            for cell_id in cell_ids
            if f"{cell_id}.json" in listed
        }
        read = {name: self._results[name] for name in wanted if name in self._results}
        found = {  # without a tag, the store cannot tell whether a file has changed
            name: result for name, (versions, result) in read.items() if versions == wanted[name] and versions[0].tag
        }
        unread = [name for name in wanted if name not in found]
        damaged = []
        for start in range(0, len(unread), BATCH):
            batch = unread[start : start + BATCH]
            contents = read_small_files(self.files, "results", [f"{name}.json" for name in batch], listed)
            for name in batch:
                content = contents[f"{name}.json"]
                if content is None:  # removed in the meantime
                    continue
                try:
                    result = Result.of_cell(name, content)
                    self._check_predictions(result, wanted[name][1])
                    self._results[name] = wanted[name], result
                    found[name] = result
                except ValueError:
                    self._set_aside(name)
                    damaged.append(name)
        return [found[name] for name in wanted if name in found], damaged

    def read_outcomes(self, cell_ids: Collection[str]) -> tuple[list[Result], list[Failure], list[str]]:
        """Return the results of finished cells, the recorded failures of the others, and the ids of damaged results.

        Damaged results are set aside as by :meth:`read_results`.
        """
        results, damaged = self.read_results(cell_ids)
        finished, recorded = {result.cell.id for result in results}, self.read_failures()
        failures = [recorded[cell_id] for cell_id in cell_ids if cell_id in recorded and cell_id not in finished]
        return results, failures, damaged

    def read_predictions(self, results: Iterable[Result]) -> dict[str, tuple[StoredPredictions, ...]]:
        """Return the predictions of cells on each scored test split, by cell id.

        Cells without predictions are left out, and so are damaged ones; their results are set aside, as
        :meth:`read_results` does.
        """
        by_id = {result.cell.id: result for result in results if result.predictions}
        listed = {} if self.files.is_local else self.files.versions("results")
        contents = read_small_files(self.files, "results", [f"{cell_id}.npz" for cell_id in by_id], listed)
        found = {}
        for cell_id, result in by_id.items():
            try:
                found[cell_id] = checked_predictions(contents[f"{cell_id}.npz"], result)
            except ValueError:
                self._set_aside(cell_id)
        return found

    def _check_predictions(self, result: Result, version: FileVersion | None) -> None:
        """Raise ``ValueError`` if the result's predictions are missing or damaged. ``version``: their file as listed.

        A listing may miss a file that was written during it, so the file is read before it counts as missing.
        """
        expected = result.predictions
        if expected is None or (not self.files.is_local and version and version.size == expected.size):
            return
        (content,) = self.files.read_many([f"results/{result.cell.id}.npz"])
        if content is None or predictions_file(content) != expected:
            raise ValueError("the predictions are missing, or their checksum differs")

    def _set_aside(self, cell_id: str) -> None:
        """Rename a damaged result, which makes its cell unfinished."""
        self._results.pop(cell_id, None)
        with suppress(FileNotFoundError):  # another process has done so
            self.files.move(f"results/{cell_id}.json", f"results/{cell_id}.json.damaged")

    def write_adapter(self, cell_id: str, files: Mapping[str, bytes]) -> None:
        """Store a finished cell's adapter; its last file has the checksums of the others and makes it complete."""
        for name, content in files.items():
            self.files.write(f"adapters/{cell_id}/{name}", content)

    def adapter_folder(self, cell_id: str) -> Path | None:
        """Return the folder of a cell's adapter on this machine's disk, downloaded if necessary.

        Returns ``None`` if it has none.
        """
        files, folder = self.files, f"adapters/{cell_id}"
        names = [name for name in files.names(folder) if not name.startswith(".")]
        local = local_folder(files, folder)
        if not files.is_local:
            files.map(lambda name: files.download(f"{folder}/{name}", local / name), names)
        return local if names else None

    def write_failure(self, failure: Failure) -> None:
        """Record that a cell or an artifact could not be made."""
        self.files.write(_failure_file(failure.id), failure.to_json().encode())

    def read_failures(self) -> dict[str, Failure]:
        """Every failure record by id; a damaged one is returned as a failure that says so."""
        failures = {}
        names = self.files.records("failures")
        for name, content in zip(names, self.files.read_many([*map(_failure_file, names)]), strict=True):
            if content is None:  # removed in the meantime
                continue
            try:
                failure = Failure.from_json(content)
                if _failure_file(failure.id) != _failure_file(name):  # it would close a cell that did not fail
                    raise ValueError(f"it is the record of {failure.id}")
            except ValueError as error:
                failure = Failure(name, f"damaged failure record: {error}", "", "", 1, "", retryable=True)
            failures[failure.id] = failure
        return failures

    def read_failure(self, failure_id: str) -> Failure | None:
        """One failure record; ``None`` if it is missing or damaged."""
        try:
            found = Failure.from_json(self.files.read(_failure_file(failure_id)))
        except (FileNotFoundError, ValueError):
            return None
        return found if found.id == failure_id else None

    def write_log(self, failure_id: str, text: str) -> str:
        """Store the log of a failed cell or artifact; returns its path or URL."""
        name = f"logs/{failure_id.replace('/', '.')}.log"
        self.files.write(name, text.encode())
        return self.files.location(name)

    def remove_failures(self, failure_ids: Iterable[str]) -> None:
        """Remove many failure records; one listing finds those that exist."""
        existing = set(map(_failure_file, self.files.records("failures")))
        self.files.map(self.files.remove, sorted(existing & set(map(_failure_file, failure_ids))))


def _failure_file(failure_id: str) -> str:
    """Return the file of a failure; the address of an artifact has a slash."""
    return f"failures/{failure_id.replace('/', '.')}.json"
