"""A table as data. Entries have numbers beside their texts: CSV files print the numbers, other formats the texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from orchestrator.analysis.seed_means import Summary
from orchestrator.report.styles import DASH, SELECTED, SELECTED_NOTE, signed

Highlight = Literal["", "best", "second"]


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        text: what is printed, without deviation and gain.
        code: the name of a method in grids and records, which CSV files print instead of its display name ``text``.
        value: the number that CSV files hold and that sorting uses; ``None`` for text and for a missing number.
        std, n: sample standard deviation and number of repetitions of a measured value.
        gain: difference to zero-shot, in points.
        digits: decimals of the deviation and the gain.
        remark: printed beside the number, for example ``n = 1`` if it is a mean over fewer seeds than its neighbours.
        highlight: ``best`` or ``second`` if the number is the best or the second best of those that it is compared
            with; empty for all others.
        tooltip: the text that the page shows while the pointer is on the entry.
        colour: colour of the square before a method's name.
        selected: whether test labels may have chosen the numbers of the row; printed as a dagger.
        notes: texts of the entry's footnotes.
        cells: ids of the cells that the number is computed from.
        lower_is_better: whether the best of several such numbers is the smallest.
    """

    text: str
    value: float | None = None
    std: float | None = None
    n: int = 0
    gain: float | None = None
    remark: str = ""
    highlight: Highlight = ""
    tooltip: str = ""
    colour: str = ""
    selected: bool = False
    notes: tuple[str, ...] = ()
    code: str = ""
    digits: int = 2
    cells: tuple[str, ...] = ()
    lower_is_better: bool = False

    @property
    def deviation(self) -> str:
        """The deviation as text, such as ``± 0.45``; empty if there is none."""
        return "" if self.std is None else f"± {self.std:.{self.digits}f}"

    @property
    def asides(self) -> list[str]:
        """What is printed after the number and its deviation: the gain ``(+3.10)`` and the remark ``[n = 1]``."""
        gain = [] if self.gain is None else [f"({signed(self.gain, self.digits)})"]
        return [*gain, f"[{self.remark}]"] if self.remark else gain

    @property
    def plain(self) -> str:
        """Everything on one line: ``71.23 ± 0.45 (+3.10)``."""
        return " ".join(filter(None, (self.text + SELECTED * self.selected, self.deviation, *self.asides)))


@dataclass(frozen=True)
class Table:
    """A table with its title and a note that says how to read it.

    Attributes:
        name: file name without its ending.
        header: titles of the columns.
        text_columns: how many of the first columns hold text; the others hold numbers.
        summary_rows: how many of the last rows summarize the others; a rule separates them.
        column_groups: titles above the header, each with the number of columns it spans; together they span all.
        header_notes: texts of the footnotes at each column's title; empty for none.
        notes: texts of the footnotes about the whole table, which have no letters.
        first_notes: texts of the footnotes that get the first letters. The next letters go to the notes of entries,
            row by row, and the last to ``header_notes``.
        merged_columns: how many of the first columns leave out a text in LaTeX if the row above has it too.
        ruled_rows: rows, counted from 0, with a rule above them.
        hide_std: whether deviations are printed in the CSV alone, to keep many columns narrow.
        header_codes: titles of the columns in CSV files, with names of methods as in grids; empty if CSV files have the
            titles in ``header``.
        dash_note: what a dash means; part of the caption if the table has a dash.
        upright_titles: whether LaTeX turns titles of number columns by 90 degrees: they are wider than the numbers.
    """

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    text_columns: int = 1
    summary_rows: int = 0
    column_groups: tuple[tuple[str, int], ...] = ()
    header_notes: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    first_notes: tuple[str, ...] = ()
    merged_columns: int = 0
    ruled_rows: tuple[int, ...] = ()
    hide_std: bool = False
    upright_titles: bool = False
    header_codes: tuple[str, ...] = ()
    dash_note: str = ""

    @cached_property
    def selected(self) -> bool:
        """Whether test labels may have chosen the numbers of any row."""
        return any(entry.selected for row in self.rows for entry in row)

    @cached_property
    def _letters(self) -> dict[str, str]:
        of_entries = (entry.notes for row in self.rows for entry in row)
        texts = dict.fromkeys(chain(self.first_notes, *of_entries, *self.header_notes))
        return {text: chr(ord("a") + i) for i, text in enumerate(texts)}

    def letters(self, notes: Sequence[str]) -> str:
        """Return the letters of an entry's or a title's footnotes, separated by commas."""
        return ",".join(self._letters[text] for text in notes)

    @property
    def footnotes(self) -> list[tuple[str, str]]:
        """The letter and the text of each footnote. A footnote without a letter is about the whole table."""
        return [*(("", text) for text in self.notes), *((letter, text) for text, letter in self._letters.items())]

    @property
    def full_header(self) -> tuple[str, ...]:
        """The titles of the columns, each with the title of its group before it."""
        groups = [title for title, span in self.column_groups for _ in range(span)] or [""] * len(self.header)
        return tuple(f"{group} {title}".strip() for group, title in zip(groups, self.header, strict=True))

    @property
    def caption(self) -> str:
        """The note, followed by the meaning of dashes and of the dagger if the table has any."""
        dashes = any(entry.text.startswith(DASH) for row in self.rows for entry in row)
        return " ".join(filter(None, (self.note, self.dash_note * dashes, SELECTED_NOTE * self.selected)))

    def without_columns(self, left_out: Collection[int]) -> Table:
        """Return the table without the columns whose numbers, counted from 0, are in ``left_out``."""
        keep = [i for i in range(len(self.header)) if i not in left_out]
        return replace(
            self,
            header=tuple(self.header[i] for i in keep),
            header_codes=tuple(self.header_codes[i] for i in keep) if self.header_codes else (),
            rows=tuple(tuple(row[i] for i in keep) for row in self.rows),
            text_columns=sum(i < self.text_columns for i in keep),
        )

    def without_constant_columns(self, start: int, stop: int) -> Table:
        """Return the table without those columns from ``start`` to ``stop - 1`` whose text is the same in all rows."""
        return self.without_columns({i for i in range(start, stop) if len({row[i].text for row in self.rows}) <= 1})


def number(value: float | None, form: str = ".2f") -> Entry:
    """Return an entry of one number; a dash for ``None``."""
    return Entry(DASH) if value is None else Entry(format(value, form), value=value)


def difference(value: float | None, digits: int = 2) -> Entry:
    """Return an entry of one difference, with its sign; a dash for ``None``."""
    return Entry(DASH) if value is None else Entry(signed(value, digits), value=value)


def measured(
    summary: Summary | None, *, missing: str = "", tooltip: str = "", seeds: int = 0, digits: int = 2, **more: Any
) -> Entry:
    """Return the entry of a mean over seeds with its deviation. Without a ``summary``, return ``missing`` after a dash.

    If the mean is over fewer than ``seeds`` seeds, a remark says over how many. A single seed has no deviation, so
    without the remark its number would look like an exact one. ``more``: further fields of the entry of a mean.
    """
    if summary is None:
        return Entry(f"{DASH} {missing}".rstrip(), tooltip=tooltip)
    count = f"n = {summary.n} seed{'s' if summary.n > 1 else ''}"
    return Entry(
        f"{summary.mean:.{digits}f}",
        value=summary.mean,
        std=summary.std,
        n=summary.n,
        remark=f"n = {summary.n}" if summary.n < seeds else "",
        tooltip=f"{count}; {tooltip}" if tooltip else count,
        digits=digits,
        **more,
    )


def highlighted(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with the best and the second best highlighted. Numbers that are printed alike are equal.

    Nothing is highlighted if there are fewer than two different numbers.
    """
    printed = [None if entry.value is None else round(entry.value, entry.digits) for entry in entries]
    lowest_first = any(entry.lower_is_better for entry in entries)
    values = sorted({value for value in printed if value is not None}, reverse=not lowest_first)
    if len(values) < 2:
        return list(entries)
    highlights: dict[float | None, Highlight] = {values[0]: "best", values[1]: "second"}
    return [replace(e, highlight=highlights.get(value, "")) for e, value in zip(entries, printed, strict=True)]


def with_highlights(rows: Sequence[Sequence[Entry]], text_columns: int = 1) -> list[list[Entry]]:
    """Return the rows with best and second best highlighted in every column of numbers."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    done = [column if i < text_columns else highlighted(column) for i, column in enumerate(columns)]
    return [list(row) for row in zip(*done, strict=True)]


def with_dagger(row: Sequence[Entry], selected: bool) -> tuple[Entry, ...]:
    """Return the row, with a dagger at its first entry if ``selected``: test labels may have chosen its numbers."""
    return (replace(row[0], selected=True), *row[1:]) if selected else tuple(row)
