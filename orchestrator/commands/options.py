"""Options that several commands share, and where they print tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

DEFAULT_STORE = "runs"

PLAIN_WIDTH = 150
"""Columns of a table that goes into a file or a pipe."""

StoreUrl = Annotated[
    str, typer.Option("--store", envvar="BOLT_STORE", help="folder or URL that keeps artifacts and results")
]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", envvar="BOLT_DATA", help="folder that holds your image folders")
]
CatalogFiles = Annotated[
    list[Path] | None, typer.Option("--catalog", help="a catalog file of your own; may be repeated")
]
OwnCatalog = Annotated[
    list[Path], typer.Option("--catalog", help="your catalog file, which is extended; of several, the last one is")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="CPU threads the arithmetic uses")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; the best there is by default")]


def table_console() -> Console:
    """The terminal; what is none gets a fixed width, so that a table does not depend on who reads it."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
