"""Footnotes of the paper's tables: which numbers each of them is about, and the letters that it gets."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report.paper.published import Axis, Position, PublishedFootnote, published_footnotes


class Footnotes:
    """The footnotes of one table. A note gets the next free letter when it is first used."""

    def __init__(self, label: str) -> None:
        self._notes = [note for note in published_footnotes() if label in note.tables]
        self._letters: dict[str, str] = {}

    def letter(self, note: str) -> str:
        """The letter of a note."""
        return self._letters.setdefault(note, chr(ord("a") + len(self._letters)))

    def of(self, axis: Axis, value: object) -> str:
        """The letters of the notes about one dataset or one method alone, separated by commas."""
        return self._letters_of(lambda note: note.conditions.keys() == {axis} and value in note.conditions[axis])

    def of_number(self, position: Position) -> str:
        """The letters of the notes about one number: those that name a method, a dataset, ... in combination."""

        def is_about(note: PublishedFootnote) -> bool:
            conditions = note.conditions.items()
            return len(conditions) > 1 and all(getattr(position, axis) in values for axis, values in conditions)

        return self._letters_of(is_about)

    def all(self) -> tuple[tuple[str, str], ...]:
        """Letter and text of every note: first the notes about the whole table, which have no letter."""
        whole = (("", note.text) for note in self._notes if not note.conditions)
        return (*whole, *((letter, note) for note, letter in self._letters.items()))

    def _letters_of(self, is_about: Callable[[PublishedFootnote], bool]) -> str:
        return ",".join(dict.fromkeys(self.letter(note.text) for note in self._notes if is_about(note)))
