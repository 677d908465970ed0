"""Take over results, adapters, predictions and failures of another store.

A cell's files are written in the order in which a run writes them: the adapter, the predictions, and the result last.
So a merge that is killed leaves no result without its other files, and the same merge continues it. The other store is
only read. No result of this store is overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.store import Store
from orchestrator.store.files import Files
from orchestrator.store.predictions import checked_predictions
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError

BATCH = 200
"""Number of cells that are read from the other store before they are written."""

ADAPTER_INDEX = "bolt.json"
"""The file of an adapter that has the checksums of its other files (:mod:`bolt.model.saving`)."""


@dataclass(frozen=True)
class Problem:
    """A cell whose result was not taken over.

    Attributes:
        kind: ``conflict`` if this store has another result of the same cell, ``damaged`` if the other store's files
            cannot be used.
        reason: what differs, or what is damaged.
    """

    cell_id: str
    kind: Literal["conflict", "damaged"]
    reason: str


@dataclass(frozen=True)
class MergeSummary:
    """What a merge did.

    Attributes:
        taken: ids of the cells whose results were taken over.
        adapters: number of adapters taken over.
        failures: ids of the failure records taken over.
        same: number of cells whose results both stores had, with equal scores and predictions.
        problems: conflicts, and damaged files of the other store.
    """

    taken: tuple[str, ...]
    adapters: int
    failures: tuple[str, ...]
    same: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Entry:
    """The files of one finished cell in the other store."""

    cell_id: str
    result: bytes
    predictions: bytes | None
    adapter: dict[str, bytes]


def merge_stores(
    store: Store, other: Store, on_progress: Callable[[int, int], None] = lambda done, of: None
) -> MergeSummary:
    """Take over into ``store`` what ``other`` has and ``store`` lacks.

    Args:
        on_progress: called with the number of cells that were looked at, and of all.

    A result that both stores have stays as it is. Its cell is a conflict if the scores or the predictions differ; times
    and versions may differ. A damaged result of ``store`` is set aside, as by every command, and then taken over.
    Failures are taken over if ``store`` knows neither a result nor a failure of the cell.

    Raises ``UserError`` if ``other`` has neither results nor failures, or is ``store`` itself.
    """
    _check_stores(store, other)
    ids = sorted(other.result_ids())
    here = store.result_ids()
    mine = {result.cell.id: result for result in store.read_results_by_id(name for name in ids if name in here)[0]}
    adapters_here = _adapter_names(store.files)
    adapters_there = _adapter_names(other.files)
    taken: list[str] = []
    problems: list[Problem] = []
    adapters = same = 0
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        wanted = {name: adapters_there.get(name, ()) for name in batch if name not in adapters_here}
        entries = list(_read(other.files, batch, wanted))
        outcomes = store.files.map(lambda entry: _merge_cell(store, entry, mine.get(entry.cell_id)), entries)
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, Problem):
                problems.append(outcome)
                continue
            adapters += bool(entry.adapter)
            same += outcome == "same"
            if outcome == "taken":
                taken.append(entry.cell_id)
        on_progress(min(start + BATCH, len(ids)), len(ids))
    failures = _merge_failures(store, other)
    return MergeSummary(tuple(taken), adapters, failures, same, tuple(problems))


def _check_stores(store: Store, other: Store) -> None:
    if (store.files.root, store.files.is_local) == (other.files.root, other.files.is_local):
        raise UserError("a store cannot be merged into itself", where=other.url, hint="name another one with --store")
    if not any(other.files.names(folder) for folder in ("results", "failures")):
        raise UserError("there are no results to take over", where=other.url, hint="give the folder of a store")


def _adapter_names(files: Files) -> dict[str, list[str]]:
    """Cell id -> file names of its adapter, the index last, for the complete adapters of a store."""
    found: dict[str, list[str]] = {}
    for path in files.versions("adapters"):
        cell_id, _, name = path.partition("/")
        if name and "/" not in name and not name.startswith("."):
            found.setdefault(cell_id, []).append(name)
    return {
        cell_id: sorted(names, key=lambda name: name == ADAPTER_INDEX)
        for cell_id, names in found.items()
        if ADAPTER_INDEX in names
    }


def _read(files: Files, cell_ids: Sequence[str], adapters: Mapping[str, Sequence[str]]) -> Iterator[_Entry]:
    """The files of finished cells, without those that are gone by now. ``adapters``: the files of adapters to read."""
    names = [f"results/{cell_id}.{ending}" for cell_id in cell_ids for ending in ("json", "npz")]
    names += [f"adapters/{cell_id}/{name}" for cell_id, own in adapters.items() for name in own]
    contents = dict(zip(names, files.read_many(names), strict=True))
    for cell_id in cell_ids:
        result = contents[f"results/{cell_id}.json"]
        own = {name: contents[f"adapters/{cell_id}/{name}"] or b"" for name in adapters.get(cell_id, ())}
        if result is not None:
            yield _Entry(cell_id, result, contents[f"results/{cell_id}.npz"], own if _is_intact(own) else {})


def _is_intact(adapter: Mapping[str, bytes]) -> bool:
    """Whether an adapter's files have the checksums of its index. Without an adapter, ``export`` runs a cell again."""
    try:
        digests = json.loads(adapter[ADAPTER_INDEX])["files"]
        return all(hashlib.sha256(adapter[name]).hexdigest() == digest for name, digest in digests.items())
    except (KeyError, ValueError, TypeError, AttributeError):
        return False


def _merge_cell(store: Store, entry: _Entry, mine: Result | None) -> Literal["taken", "same"] | Problem:
    """Take one cell over, or say why not. ``mine``: the result that the store has."""
    try:
        result = Result.of_cell(entry.cell_id, entry.result)
        checked_predictions(entry.predictions, result)
    except ValueError as error:
        return Problem(entry.cell_id, "damaged", str(error))
    if mine is not None and (reason := _difference(mine, result)):
        return Problem(entry.cell_id, "conflict", reason)
    store.write_adapter(entry.cell_id, entry.adapter)
    if mine is not None:
        return "same"
    name = f"results/{entry.cell_id}"
    if entry.predictions is not None and result.predictions is not None:
        store.files.write(f"{name}.npz", entry.predictions)
    if not store.files.create(f"{name}.json", entry.result):  # a run has just written it
        return _merge_cell(store, replace(entry, adapter={}), store.read_result(entry.cell_id))
    store.files.remove(f"failures/{entry.cell_id}.json")
    return "taken"


def _difference(mine: Result, theirs: Result) -> str:
    """What differs between two results of one cell id; empty if they agree."""
    if mine.cell != theirs.cell:
        return "the stores have two different cells with this id"
    for here, there in zip(mine.evaluations, theirs.evaluations, strict=True):
        if here != there:
            if here.accuracy == there.accuracy:
                return f"other images of {here.dataset} are correct here and there"
            return f"the accuracy on {here.dataset} is {here.accuracy:.4g} here and {there.accuracy:.4g} there"
    if mine.predictions and theirs.predictions and mine.predictions.sha256 != theirs.predictions.sha256:
        return "the predictions differ"
    return ""


def _merge_failures(store: Store, other: Store) -> tuple[str, ...]:
    """Take over failures of cells and artifacts of which the store has neither a result nor a failure."""
    finished = store.result_ids() | other.result_ids()
    known = store.read_failures()
    taken = []
    for failure_id in sorted(other.read_failures()):
        built = "/" in failure_id and store.files.exists(f"{failure_id}/manifest.json")
        if failure_id in known or failure_id in finished or built:
            continue
        failure = other.read_failure(failure_id)
        if failure is None:  # a damaged record says nothing
            continue
        (log,) = other.files.read_many([f"logs/{failure_id.replace('/', '.')}.log"])
        location = store.write_log(failure_id, log.decode("utf-8", "replace")) if log is not None else ""
        store.write_failure(replace(failure, log=location))
        taken.append(failure_id)
    return tuple(taken)
