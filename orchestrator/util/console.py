"""Prints single lines."""

from __future__ import annotations

from rich.console import Console


def print_line(line: str, console: Console | None = None, style: str | None = None) -> None:
    """Print a line as it is, without markup, highlighting or wrapping; by default to standard output."""
    (console or Console()).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
