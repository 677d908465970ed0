"""Copies results, adapters, predictions and failures from another store.

The files of a cell are copied in the order in which a run writes them: the adapter, the predictions, and the result
last. So a merge that is killed leaves no result without its other files, and the same command continues the merge. The
other store is only read. No intact result of this store is overwritten.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.core.events import OnProgress
from orchestrator.store import Store
from orchestrator.store.files import Files
from orchestrator.store.predictions import checked_predictions
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError

BATCH = 200
"""Number of cells between two reports of progress."""

ADAPTER_INDEX = "bolt.json"
"""The file of an adapter with the checksums of the adapter's other files (:mod:`bolt.model.saving`)."""


@dataclass(frozen=True)
class MergedCell:
    """What a merge did with one cell of the other store.

    Attributes:
        kind: ``taken`` if the result was copied; ``same`` if both stores had it, with equal scores and predictions;
            ``conflict`` if this store has a different result of the cell; ``damaged`` if the other store's files cannot
            be used; ``gone`` if they were removed during the merge.
        reason: what differs, or what is damaged.
        adapter: whether the cell's adapter was copied.
    """

    cell_id: str
    kind: Literal["taken", "same", "conflict", "damaged", "gone"]
    reason: str = ""
    adapter: bool = False


def merge_stores(
    store: Store, other: Store, on_progress: OnProgress = lambda done, of: None
) -> tuple[list[MergedCell], list[str]]:
    """Copy into ``store`` what ``other`` has and ``store`` lacks.

    A result that both stores have is not copied. It is a conflict if the scores or the predictions differ; times and
    versions may differ. A damaged result of ``store`` is set aside and replaced. A failure is copied if ``store`` has
    neither a result nor a failure of the cell. The status of a grid is copied if the grid never ran in ``store``: the
    status has the ``--set`` of the grid's last run, and tells whether the run was a race.

    Returns what was done with each cell that has a result in ``other``, and the ids of the copied failures.

    Raises ``UserError`` if ``other`` has neither results nor failures, or if both are the same store.
    """
    if (store.files.root, store.files.is_local) == (other.files.root, other.files.is_local):
        raise UserError("a store cannot be merged into itself", where=other.url, hint="name another store with --store")
    if not any(other.files.names(folder) for folder in ("results", "failures")):
        raise UserError("the store has no results to merge", where=other.url, hint="give the folder of another store")
    ids = sorted(other.result_ids())
    here = store.result_ids()
    mine = {result.cell.id: result for result in store.read_results(name for name in ids if name in here)[0]}
    adapters_here, adapters_there = _adapter_files(store.files), _adapter_files(other.files)

    def merge(cell_id: str) -> MergedCell:
        wanted = [] if cell_id in adapters_here else adapters_there.get(cell_id, [])
        return _merge_cell(store, other, cell_id, mine.get(cell_id), wanted)

    cells: list[MergedCell] = []
    for start in range(0, len(ids), BATCH):
        cells += (store if other.files.is_local else other).files.map(merge, ids[start : start + BATCH])
        on_progress(len(cells), len(ids))
    failures = _merge_failures(store, other)
    for grid in other.files.records("status"):
        store.files.create(f"status/{grid}.json", other.files.read(f"status/{grid}.json"))
    return cells, failures


def _adapter_files(files: Files) -> dict[str, list[str]]:
    """Return cell id -> names of the adapter's files, the index last, for each cell with a complete adapter."""
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


def _merge_cell(
    store: Store, other: Store, cell_id: str, mine: Result | None, adapter_files: Sequence[str]
) -> MergedCell:
    """Copy one cell from ``other`` to ``store`` if it can be copied, and return what was done.

    Args:
        mine: the result in ``store``; ``None`` if there is none.
        adapter_files: names of the adapter's files in ``other``, the index last; empty if ``store`` has the adapter.
    """
    name = f"results/{cell_id}"
    content, predictions = other.files.read_many([f"{name}.json", f"{name}.npz"])
    parts = other.files.read_many([f"adapters/{cell_id}/{file}" for file in adapter_files])
    if content is None:
        return MergedCell(cell_id, "gone")
    try:
        result = Result.of_cell(cell_id, content)
        checked_predictions(predictions, result)
    except ValueError as error:
        return MergedCell(cell_id, "damaged", str(error))
    if mine is not None and (reason := _difference(mine, result)):
        return MergedCell(cell_id, "conflict", reason)
    adapter = {file: part or b"" for file, part in zip(adapter_files, parts, strict=True)}
    if intact := _is_intact(adapter):
        store.write_adapter(cell_id, adapter)
    if mine is not None:
        return MergedCell(cell_id, "same", adapter=intact)
    if predictions is not None and result.predictions is not None:
        store.files.write(f"{name}.npz", predictions)
    if not store.files.create(f"{name}.json", content):  # there is a result now: a run has just written it
        return replace(_merge_cell(store, other, cell_id, store.read_result(cell_id), []), adapter=intact)
    store.files.remove(f"failures/{cell_id}.json")
    return MergedCell(cell_id, "taken", adapter=intact)


def _is_intact(adapter: Mapping[str, bytes]) -> bool:
    """Return whether an adapter's files have the checksums of its index.

    An adapter that is not intact is not copied: ``export`` can run the cell again.
    """
    try:
        digests = json.loads(adapter[ADAPTER_INDEX])["files"]
        return all(hashlib.sha256(adapter[name]).hexdigest() == digest for name, digest in digests.items())
    except (KeyError, ValueError, TypeError, AttributeError):
        return False


def _difference(mine: Result, theirs: Result) -> str:
    """Return what differs between two results of one cell id; empty if they agree."""
    if mine.cell != theirs.cell:
        return "the stores have two different cells with this id"
    for here, there in zip(mine.evaluations, theirs.evaluations, strict=True):
        if here != there:
            if here.accuracy == there.accuracy:
                return f"the accuracy on {here.dataset} is the same, but different images are classified correctly"
            return f"the accuracy on {here.dataset} is {here.accuracy:.6g} here and {there.accuracy:.6g} there"
    if mine.predictions and theirs.predictions and mine.predictions.sha256 != theirs.predictions.sha256:
        return "the predictions differ"
    return ""


def _merge_failures(store: Store, other: Store) -> list[str]:
    """Copy the failures that ``store`` lacks, and return their ids.

    Failures of cells that have finished since, and of artifacts that were built since, are left out.
    """
    finished = store.result_ids() | other.result_ids()
    known = store.read_failures()
    taken = []
    for failure_id in sorted(other.read_failures()):
        built = "/" in failure_id and store.files.exists(f"{failure_id}/manifest.json")
        failure = None if built or failure_id in known or failure_id in finished else other.read_failure(failure_id)
        if failure is None:  # not missing here, or damaged
            continue
        (log,) = other.files.read_many([f"logs/{failure_id.replace('/', '.')}.log"])
        location = store.write_log(failure_id, log.decode("utf-8", "replace")) if log is not None else ""
        store.write_failure(replace(failure, log=location))
        taken.append(failure_id)
    return taken
