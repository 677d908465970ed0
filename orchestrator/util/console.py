"""Prints lines, sentences and plain tables. Control characters in them are spelled out, so no terminal obeys them."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import rich.console
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status
    from rich.table import Table


def printable(text: str) -> str:
    """Spell out the control characters in a text, for example as ``\\x1b``. Line ends and tabs stay.

    A title or a name can have control characters, which a terminal would obey.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Matches control characters except line ends and tabs, and characters that change the direction of writing."""


class Console(rich.console.Console):
    """Rich's console, with :func:`printable` applied to every text. Brackets, as in ``gda[k=1]``, are not markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Return a status line that prints its text as it is. Rich's own status lines always interpret markup."""
        from rich.status import Status
        from rich.text import Text

        class PlainStatus(Status):
            def update(self, status: RenderableType | None = None, **options: Any) -> None:
                super().update(Text(status) if isinstance(status, str) else status, **options)

        line = PlainStatus("", console=self, **options)
        line.update(status)
        return line

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Render as rich does. Rich's own control codes are separate segments, which stay unchanged."""
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def print_line(line: str, console: rich.console.Console | None = None, style: str | None = None) -> None:
    """Print a line without markup, highlighting or wrapping; by default to standard output.

    Only the terminal wraps a long line. So a path or command in the line can be copied as a whole.
    """
    (console or Console()).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note to standard error, unless it is empty."""
    if text:
        print(f"note: {printable(text)}", file=sys.stderr)


def plain_table(*headings: str, right: Collection[str] = (), **column_options: Any) -> Table:
    """Return an empty table without rules, in which the columns named in ``right`` are aligned to the right.

    ``column_options`` are options of rich's ``Table.add_column`` for every column.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", **column_options)
    return table
