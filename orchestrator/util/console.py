"""Prints single lines and sentences, and makes plain tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table


def print_line(line: str, console: Console | None = None, style: str | None = None) -> None:
    """Print a line as it is, without markup, highlighting or wrapping; by default to standard output.

    A terminal breaks a long line anywhere, and a path or command in it can still be copied.
    """
    (console or Console()).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_sentence(text: str, console: Console) -> None:
    """Print a sentence without a path or command in it. A terminal gets lines that end between words."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def plain_table(*headings: str, right: Collection[str] = (), **column_options: Any) -> Table:
    """Make a table without lines. The columns named in ``right`` are aligned to the right, the others to the left.

    ``column_options`` go to rich's ``Table.add_column``, for every column.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", **column_options)
    return table
