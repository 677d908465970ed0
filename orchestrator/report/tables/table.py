"""A table as data: entries that know their number, so that every format prints them its own way (see ``formats``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from orchestrator.report.analysis.statistics import Summary
from orchestrator.report.text import DASH, SELECTED, SELECTED_NOTE, signed

Mark = Literal["", "best", "second"]


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        text: what stands there, without deviation and gain.
        value: the number it is sorted by and written to CSV as; ``None`` for words and for what is missing.
        spread, n: sample standard deviation and number of repetitions of a measured value.
        gain: difference to zero-shot, in points.
        aside: what must be read with the number: that it has fewer seeds than its neighbours.
        note: what the pointer shows over it.
        colour: of the chip before it, for a method's name.
        selected: whether test labels may have chosen the numbers of its row; printed as a dagger.
        marks: letters of the table's footnotes that belong to it.
    """

    text: str
    value: float | None = None
    spread: float | None = None
    n: int = 0
    gain: float | None = None
    aside: str = ""
    mark: Mark = ""
    note: str = ""
    colour: str = ""
    selected: bool = False
    marks: str = ""

    @property
    def plain(self) -> str:
        """The whole of it on one line: ``71.23 ± 0.45 (+3.10)``."""
        dagger = SELECTED if self.selected else ""
        spread = f" ± {self.spread:.2f}" if self.spread is not None else ""
        gain = f" ({signed(self.gain)})" if self.gain is not None else ""
        return self.text + dagger + spread + gain + (f" [{self.aside}]" if self.aside else "")

    @property
    def short(self) -> str:
        """The same without its deviation."""
        return replace(self, spread=None).plain


@dataclass(frozen=True)
class Table:
    """A table with its title and the sentence that says how to read it.

    Attributes:
        name: file name without its ending.
        header: the columns' titles; the first ``words`` of them hold words, the others numbers.
        closing: how many of the last rows are summaries, set apart by a rule.
        groups: titles over the header, each with how many columns it spans; they span all of them together.
        header_marks: the letters of footnotes at each column's title; empty for none.
        footnotes: letter and text of each.
        merged: in so many leading columns of words, what repeats itself from row to row is printed once.
        breaks: rows, counted from 0, that are set apart from the one above them.
        compact: whether deviations stand in the CSV alone, to keep many columns narrow.
        turned: whether the titles of the columns of numbers may stand upright, being longer than the numbers.
    """

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    words: int = 1
    closing: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    header_marks: tuple[str, ...] = ()
    footnotes: tuple[tuple[str, str], ...] = ()
    merged: int = 0
    breaks: tuple[int, ...] = ()
    compact: bool = False
    turned: bool = False

    @cached_property
    def selected(self) -> bool:
        """Whether any row holds numbers that test labels may have chosen."""
        return any(entry.selected for row in self.rows for entry in row)

    @property
    def full_header(self) -> tuple[str, ...]:
        """The columns' titles, each with its group's before it: unique where the titles alone are not."""
        groups = [title for title, span in self.groups for _ in range(span)] or [""] * len(self.header)
        return tuple(f"{group} {title}".strip() for group, title in zip(groups, self.header, strict=True))

    @property
    def caption(self) -> str:
        """The note and, where it is due, what the dagger means."""
        return f"{self.note} {SELECTED_NOTE}".strip() if self.selected else self.note


def word(text: str, *, colour: str = "", note: str = "") -> Entry:
    """An entry of words."""
    return Entry(text, colour=colour, note=note)


def number(value: float | None, form: str = ".2f", *, note: str = "") -> Entry:
    """An entry of one number; a dash for none."""
    return Entry(DASH, note=note) if value is None else Entry(format(value, form), value=value, note=note)


def difference(value: float | None) -> Entry:
    """An entry of one difference, with its sign."""
    return Entry(DASH) if value is None else Entry(signed(value), value=value)


def measured(
    summary: Summary | None, *, gain: float | None = None, missing: str = "", note: str = "", seeds: int = 0
) -> Entry:
    """An entry of a mean over seeds; a dash, with ``missing`` saying how much of it there is, for none.

    If ``seeds`` says that there should be more than there are, the entry says so itself: a number without a deviation
    is otherwise easily taken for a sure one.
    """
    if summary is None:
        return Entry(f"{DASH} {missing}".rstrip(), note=note)
    count = f"n = {summary.n} seed{'s' if summary.n > 1 else ''}"
    return Entry(
        f"{summary.mean:.2f}",
        value=summary.mean,
        spread=summary.std,
        n=summary.n,
        gain=gain,
        aside=f"n = {summary.n}" if summary.n < seeds else "",
        note=f"{count}; {note}" if note else count,
    )


def marked(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with best and second marked, higher being better, as printed: equal digits share the mark.

    Fewer than two numbers have no best.
    """
    values = sorted({round(entry.value, 2) for entry in entries if entry.value is not None}, reverse=True)
    if sum(entry.value is not None for entry in entries) < 2 or len(values) < 2:
        return list(entries)
    marks: dict[float, Mark] = {values[0]: "best", values[1]: "second"}
    return [
        replace(entry, mark=marks.get(round(entry.value, 2), "")) if entry.value is not None else entry
        for entry in entries
    ]


def marked_columns(rows: Sequence[Sequence[Entry]], words: int = 1) -> list[list[Entry]]:
    """The rows with best and second marked in every column after the first ``words``."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    done = [column if i < words else marked(column) for i, column in enumerate(columns)]
    return [list(row) for row in zip(*done, strict=True)]


def flagged(row: Sequence[Entry], selected: bool) -> tuple[Entry, ...]:
    """The row with a dagger at its first entry if test labels may have chosen its numbers."""
    return (replace(row[0], selected=True), *row[1:]) if selected else tuple(row)


def without_constant_columns(table: Table, start: int, stop: int) -> Table:
    """The table without those columns between ``start`` and ``stop`` that hold one text throughout."""
    dull = {i for i in range(start, stop) if len({row[i].text for row in table.rows}) <= 1}
    keep = [i for i in range(len(table.header)) if i not in dull]
    return replace(
        table,
        header=tuple(table.header[i] for i in keep),
        rows=tuple(tuple(row[i] for i in keep) for row in table.rows),
        words=sum(i < table.words for i in keep),
    )
