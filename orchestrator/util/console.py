"""Prints single lines and sentences."""

from __future__ import annotations

from rich.console import Console


def print_line(line: str, console: Console | None = None, style: str | None = None) -> None:
    """Print a line as it is, without markup, highlighting or wrapping; by default to standard output.

    A terminal breaks a long line anywhere, and a path or command in it can still be copied.
    """
    (console or Console()).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_sentence(text: str, console: Console) -> None:
    """Print a sentence without a path or command in it. A terminal gets lines that end between words."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
