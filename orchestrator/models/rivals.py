"""Finds the cells that a finished cell is compared with: other methods on the same images, support and backbone."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.analysis.rows import labels_of
from orchestrator.core.cell import Cell
from orchestrator.grid.labels import method_labels
from orchestrator.store import Store
from orchestrator.store.results import Result


def find_rivals(result: Result, store: Store) -> list[Result]:
    """The results of all other methods in the cell's place: same track, protocol, backbone, dataset, k and seed.

    Methods without a support are in every place. Damaged results are left out. The most accurate come first.
    """
    cell = result.cell
    rivals = []
    for name in store.result_ids() - {cell.id}:
        if _may_compete(name, cell):
            with suppress(FileNotFoundError, ValueError):
                rivals.append(store.read_result(name))
    rivals = [rival for rival in rivals if _competes(rival.cell, cell)]
    return sorted(rivals, key=lambda rival: (-rival.evaluations[0].accuracy, rival.cell.id))


def labels_in_place(results: list[Result]) -> dict[str, str]:
    """Cell id -> the method's name, with the settings that differ where several cells have one method."""
    labels = method_labels(result.cell.method for result in results)
    return labels_of((result.cell for result in results), lambda cell: labels[cell.method])


def _may_compete(name: str, cell: Cell) -> bool:
    """Whether the readable part of an id allows that its cell competes; saves reading most results."""
    ours, theirs = (text.partition("--")[0].split(".") for text in (cell.id, name))
    return (
        len(theirs) == len(ours)
        and theirs[:3] == ours[:3]
        and theirs[3] in (ours[3], "k0")
        and theirs[5] in (ours[5], "s0")
    )


def _competes(rival: Cell, cell: Cell) -> bool:
    return (
        (rival.track, rival.protocol, rival.backbone, rival.domain, rival.dataset, rival.evaluate_on)
        == (cell.track, cell.protocol, cell.backbone, cell.domain, cell.dataset, cell.evaluate_on)
        and rival.shots in (cell.shots, 0)
        and rival.seed in (cell.seed, 0)
    )
