"""The store as one object: artifacts by address, results and failures by id."""

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
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
"""The versions of a cell's result file and of its predictions file, if there is one."""

BATCH = 1000
"""Number of result files that are read at a time before they are parsed."""


class Store:
    """Artifacts, results and failures under one root folder or URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.files = Files(url)
        self.url = self.files.url
        self._results: dict[str, tuple[Versions, Result]] = {}

    # -- artifacts ---------------------------------------------------------------------------------------------

    def artifact(self, address: str, identity: Any = None) -> Artifact | None:
        """Return the finished artifact at ``address``; ``None`` if there is none.

        Raises ``UserError`` if the recorded identity differs from a given ``identity``, because two artifacts then have
        the same address. Raises :class:`CorruptArtifact` for a manifest that cannot be read.
        """
        found = Artifact.read(self.files, address)
        if found is not None and identity is not None and canonical_json(found.identity) != canonical_json(identity):
            what = f"{address} in {self.url} already holds another artifact: its recorded identity differs"
            raise UserError(what, hint=f"move {self.url}/{address} away")
        return found

    def is_intact(self, address: str, identity: Any = None) -> bool:
        """Return whether an intact artifact exists, and discard a damaged one.

        Raises ``UserError`` if the artifact at ``address`` has another identity.
        """
        try:
            if found := self.artifact(address, identity):
                found.verify()
            return found is not None
        except CorruptArtifact:
            discard(self.files, address)
            return False

    def addresses(self, kind: str) -> list[str]:
        """Return the addresses of the finished artifacts of one kind."""
        paths = (path.split("/") for path in self.files.versions(kind))  # one listing, not a request per artifact
        return sorted(f"{kind}/{parts[0]}" for parts in paths if parts[1:] == ["manifest.json"])

    def building(self, address: str, identity: Any) -> AbstractContextManager[Builder]:
        """Build an artifact in the block, see :func:`orchestrator.store.building.building`."""
        return building(self.files, address, identity)

    def build_progress(self, address: str) -> str:
        """Return the last reported progress of a build, such as ``1,500 of 3,000``; empty if there is none."""
        return BuildProgress(self.files, address).read()

    # -- results and failures ----------------------------------------------------------------------------------

    def write_result(self, result: Result, predictions: bytes | None = None) -> None:
        """Record a finished cell, and remove an earlier failure record of the cell.

        ``predictions`` is the content of the predictions file. It is written first, so that a result never exists
        without its predictions.
        """
        if predictions is not None:
            self.files.write(f"results/{result.cell.id}.npz", predictions)
        self.files.write(f"results/{result.cell.id}.json", result.to_json().encode())
        self.files.remove(f"failures/{result.cell.id}.json")

    def result_ids(self) -> frozenset[str]:
        """Return the ids of the cells with a result file."""
        return frozenset(self.files.records("results"))

    def read_result(self, cell_id: str) -> Result:
        """Return the result of a cell. Raises ``FileNotFoundError``, or ``ValueError`` for a damaged file."""
        return Result.of_cell(cell_id, self.files.read(f"results/{cell_id}.json"))

    def read_results(self, cell_ids: Iterable[str]) -> tuple[list[Result], list[str]]:
        """Return the existing results of cells, and the ids of the cells whose result or predictions are damaged.

        Files that have not changed since this object read them are not read again. If a result is damaged, or if its
        predictions are missing or damaged, the result is renamed to ``results/<id>.json.damaged``. Its cell is then
        unfinished again, and its id is returned by every call until it has been measured. In a remote store, only the
        size of predictions is checked here.
        """
        listed, asked = self.files.versions("results"), [*cell_ids]
        there = [cell_id for cell_id in asked if f"{cell_id}.json" in listed]
        wanted = {cell_id: (listed[f"{cell_id}.json"], listed.get(f"{cell_id}.npz")) for cell_id in there}
        read = {name: self._results[name] for name in wanted if name in self._results}
        found = {  # without a tag, the store cannot tell whether a file has changed
            name: result for name, (versions, result) in read.items() if versions == wanted[name] and versions[0].tag
        }
        unread = [name for name in wanted if name not in found]
        damaged = [name for name in asked if name not in wanted and f"{name}.json.damaged" in listed]
        for start in range(0, len(unread), BATCH):
            batch = unread[start : start + BATCH]
            contents = read_small_files(self.files, "results", [f"{name}.json" for name in batch], listed)
            for name in batch:
                if (content := contents[f"{name}.json"]) is None:  # removed in the meantime
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
        """Return the results of finished cells, the failures of unfinished cells, and the ids of damaged results.

        Damaged results are set aside as by :meth:`read_results`.
        """
        results, damaged = self.read_results(cell_ids)
        finished, recorded = {result.cell.id for result in results}, self.read_failures()
        failures = [recorded[cell_id] for cell_id in cell_ids if cell_id in recorded and cell_id not in finished]
        return results, failures, damaged

    def read_predictions(self, results: Iterable[Result]) -> dict[str, tuple[StoredPredictions, ...]]:
        """Return the predictions of cells on each scored test split, by cell id.

        A cell without predictions is left out. A cell with damaged predictions is left out too, and its result is set
        aside as by :meth:`read_results`.
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
        """Raise ``ValueError`` if the predictions of a result are missing or damaged.

        ``version`` is the listed version of the predictions file. A listing can miss a file that was written meanwhile,
        so the file is read before it counts as missing.
        """
        expected = result.predictions
        if expected is None or (not self.files.is_local and version and version.size == expected.size):
            return
        (content,) = self.files.read_many([f"results/{result.cell.id}.npz"])
        if content is None or predictions_file(content) != expected:
            raise ValueError("the predictions are missing, or their checksum differs")

    def _set_aside(self, cell_id: str) -> None:
        """Rename a damaged result, so that its cell is unfinished."""
        self._results.pop(cell_id, None)
        with suppress(OSError):  # another process has renamed it, or this one may not write
            self.files.move(f"results/{cell_id}.json", f"results/{cell_id}.json.damaged")

    def write_adapter(self, cell_id: str, files: Mapping[str, bytes]) -> None:
        """Store a finished cell's adapter. The last of ``files`` has the checksums of the other files."""
        for name, content in files.items():
            self.files.write(f"adapters/{cell_id}/{name}", content)

    def adapter_folder(self, cell_id: str) -> Path | None:
        """Return the local folder of a cell's adapter, downloaded if necessary; ``None`` if there is no adapter."""
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
        """Return every failure by id. A damaged record becomes a failure that says so and can be retried."""
        failures = {}
        names = self.files.records("failures")
        for name, content in zip(names, self.files.read_many([*map(_failure_file, names)]), strict=True):
            if content is None:  # removed in the meantime
                continue
            try:
                failure = self._with_log_here(Failure.from_json(content))
                if _failure_file(failure.id) != _failure_file(name):  # would mark another cell as failed
                    raise ValueError(f"it is the record of {failure.id}")
            except ValueError as error:
                failure = Failure(name, f"damaged failure record: {error}", "", "", 1, "", retryable=True)
            failures[failure.id] = failure
        return failures

    def read_failure(self, failure_id: str) -> Failure | None:
        """Return one failure record; ``None`` if it is missing or damaged."""
        try:
            found = self._with_log_here(Failure.from_json(self.files.read(_failure_file(failure_id))))
        except (FileNotFoundError, ValueError):
            return None
        return found if found.id == failure_id else None

    def write_log(self, failure_id: str, text: str) -> str:
        """Store the log of a failed cell or artifact, and return its path or URL."""
        self.files.write(_log_file(failure_id), text.encode())
        return self.files.location(_log_file(failure_id))

    def _with_log_here(self, failure: Failure) -> Failure:
        """Return a failure with the place where its log is now: the store may have been moved or copied."""
        name = _log_file(failure.id)
        return replace(failure, log=self.files.location(name)) if failure.log.endswith(name) else failure

    def remove_failures(self, failure_ids: Iterable[str]) -> None:
        """Remove the failure records of these ids, as far as they exist. One listing finds the existing records."""
        existing = set(map(_failure_file, self.files.records("failures")))
        self.files.map(self.files.remove, sorted(existing & set(map(_failure_file, failure_ids))))


def _failure_file(failure_id: str) -> str:
    """Return the name of a failure's file. Slashes of an artifact's address become dots."""
    return f"failures/{failure_id.replace('/', '.')}.json"


def _log_file(failure_id: str) -> str:
    return f"logs/{failure_id.replace('/', '.')}.log"
