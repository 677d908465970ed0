"""How a LaTeX table is made to fit a page: as it is, shrunk, on its side, or over several pages.

Widths are estimated for the text block of an article, 345 pt by 550 pt. Other classes leave more room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from orchestrator.report.tables.table import Table

TEXT_WIDTH, TEXT_HEIGHT = 345.0, 550.0
_SMALLEST_TYPE = r"\tiny"
_SMALLEST_SCALE = 0.5
"""How far a table is shrunk before it is laid on its side: 9 pt type becomes 4.5 pt."""
_TYPE_SIZES = {r"\small": 9.0, r"\footnotesize": 8.2, r"\scriptsize": 7.5, _SMALLEST_TYPE: 6.4}
"""Points. LaTeX draws letters of small type wider, so these are the sizes at which a larger type is as wide."""
_EM = 0.52
"""The average width of a digit or letter, as a fraction of the type size."""
_LINE = 11
"""Points from one row to the next."""


@dataclass(frozen=True)
class Fit:
    """How a table is set.

    Attributes:
        environment: ``table``, ``table*``, ``sidewaystable*``, ``longtable``, or ``landscape`` for one on its side.
        table: the table, perhaps with upright titles or without deviations.
        size: size of type.
        shrunk: whether the table is scaled to the width of the text.
    """

    environment: str
    table: Table
    size: str = r"\small"
    shrunk: bool = False

    @property
    def long(self) -> bool:
        """Whether the table may run over several pages. LaTeX cannot set such a table in two columns of text."""
        return self.environment in ("longtable", "landscape")


def fit_of(table: Table) -> Fit:
    """The first way that keeps the table readable: as it is, shrunk, on its side, then over several pages.

    Each is tried with the table as it is, with upright titles, and without deviations.
    """
    lines = len(table.rows) + 2 * len(table.footnotes) + 6
    upright = replace(table, upright_titles=True)
    candidates = [(one, _column_lengths(one)) for one in (table, upright, _without_std(upright))]
    if _width(candidates[0][1], 9.0) <= TEXT_WIDTH and lines * _LINE <= TEXT_HEIGHT:
        return Fit("table", table)
    one_page = (("table*", TEXT_WIDTH, TEXT_HEIGHT), ("sidewaystable*", TEXT_HEIGHT, TEXT_WIDTH))
    for (candidate, lengths), (environment, width, height) in product(candidates, one_page):
        scale = min(1.0, width / _width(lengths, 9.0))
        if scale >= _SMALLEST_SCALE and lines * _LINE * scale <= height:
            return Fit(environment, candidate, shrunk=True)
    pages = (("longtable", TEXT_WIDTH), ("landscape", TEXT_HEIGHT))
    for (candidate, lengths), (environment, width) in product(candidates, pages):
        for size, points in _TYPE_SIZES.items():
            if _width(lengths, points) <= width:
                return Fit(environment, candidate, size)
    narrowest, lengths = candidates[-1]
    if lines * _LINE * TEXT_HEIGHT / _width(lengths, 9.0) <= TEXT_WIDTH:
        return Fit("sidewaystable*", narrowest, shrunk=True)
    return Fit("landscape", narrowest, _SMALLEST_TYPE)


def _without_std(table: Table) -> Table:
    if table.hide_std or not any(entry.std is not None for row in table.rows for entry in row):
        return table
    return replace(table, hide_std=True, note=f"{table.note} Deviations are left out here; the CSV has them.")


def _column_lengths(table: Table) -> list[int]:
    """The number of characters of the longest entry of each column."""
    lengths = []
    for column, title in enumerate(table.header):
        entries = [replace(row[column], std=None) if table.hide_std else row[column] for row in table.rows]
        of_title = 2 if table.upright_titles and column >= table.text_columns else len(title)
        lengths.append(max([of_title, *(len(entry.plain) + len(entry.footnotes) for entry in entries)]))
    return lengths


def _width(lengths: Sequence[int], points: float) -> float:
    """The width in points of such columns in type of this size, with 3 pt on either side of each column."""
    return sum(lengths) * points * _EM + 6 * len(lengths)
