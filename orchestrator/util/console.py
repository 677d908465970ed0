"""Prints lines, sentences and plain tables; what a terminal would obey in the text is shown instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import rich.console
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.table import Table


def printable(text: str) -> str:
    """Spell control characters out, for example ``\\x1b``: a terminal obeys them, also those in a title or a name.

    Line ends and tabs stay.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""A terminal's control characters except line ends and tabs, and characters that turn the direction of writing."""


class Console(rich.console.Console):
    """Rich's console, which prints every text as :func:`printable` gives it."""

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Render as rich does. Its own control codes are segments of another kind."""
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def print_line(line: str, console: rich.console.Console | None = None, style: str | None = None) -> None:
    """Print a line without markup, highlighting or wrapping; by default to standard output.

    A terminal breaks a long line anywhere, and a path or command in it can still be copied.
    """
    (console or Console()).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_sentence(text: str, console: rich.console.Console) -> None:
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
