"""Footnotes of the paper's tables: which numbers each of them is about, and the letters that it gets."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.report.paper.measured import Position
from orchestrator.report.paper.published import PublishedFootnote, published_footnotes


class Footnotes:
    """The footnotes of one table. A note gets the next free letter when it is first used."""

    def __init__(self, label: str) -> None:
        self._notes = [note for note in published_footnotes() if label in note.tables]
        self._letters: dict[str, str] = {}

    def letter(self, note: str) -> str:
        """The letter of a note."""
        return self._letters.setdefault(note, chr(ord("a") + len(self._letters)))

    def of_dataset(self, dataset: object) -> str:
        """The letters of the notes about a dataset alone, separated by commas."""
        return self._join(n.text for n in self._notes if _keys(n) == {"dataset"} and dataset in n.datasets)

    def of_method(self, method: str) -> str:
        """The letters of the notes about a method alone."""
        return self._join(n.text for n in self._notes if _keys(n) == {"method"} and method in n.methods)

    def of_number(self, position: Position) -> str:
        """The letters of the notes about one number: those that name a method, a dataset, ... in combination."""
        return self._join(n.text for n in self._notes if len(_keys(n)) > 1 and _matches(n, position))

    def all(self) -> tuple[tuple[str, str], ...]:
        """Letter and text of every note: first the notes about the whole table, which have no letter."""
        whole = (("", note.text) for note in self._notes if not _keys(note))
        return (*whole, *((letter, note) for note, letter in self._letters.items()))

    def _join(self, notes: Iterable[str]) -> str:
        return ",".join(dict.fromkeys(map(self.letter, notes)))


def _keys(note: PublishedFootnote) -> set[str]:
    values = {"method": note.methods, "backbone": note.backbones, "dataset": note.datasets, "shots": note.shots}
    return {key for key, own in values.items() if own}


def _matches(note: PublishedFootnote, position: Position) -> bool:
    pairs = (
        (note.methods, position.method),
        (note.backbones, position.backbone),
        (note.datasets, position.dataset),
        (note.shots, position.shots),
    )
    return all(not allowed or value in allowed for allowed, value in pairs)
