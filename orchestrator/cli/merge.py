"""``merge``: copy the results of another store."""

from collections import Counter
from typing import Annotated

import typer

from orchestrator.cli.options import DEFAULT_STORE, StoreUrl, store_url
from orchestrator.util.console import print_line
from orchestrator.util.units import pluralize


def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER_STORE", callback=store_url, help="the store to copy from; it is only read")
    ],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Copy the results of another store.

    Results are copied with their adapters and predictions, and failures with their logs. The status of a grid is copied
    if the grid never ran in --store. Nothing in --store is overwritten. A cell with different scores in the two stores
    is printed as a conflict, and the exit code is 1. The command can be killed and repeated.
    """
    from orchestrator.sharing.merge import BATCH, merge_stores
    from orchestrator.store import Store

    def show(done: int, of: int) -> None:
        if of > BATCH:
            print_line(f"{done:,} of {of:,} cells compared", style="dim")

    cells, failures = merge_stores(Store(store), Store(other), show)
    kinds, adapters = Counter(cell.kind for cell in cells), sum(cell.adapter for cell in cells)
    taken = f"{pluralize(kinds['taken'], 'result')}, {pluralize(adapters, 'adapter')}"
    print_line(f"taken over: {taken}, {pluralize(len(failures), 'failure')}")
    print_line(f"already here with the same scores: {pluralize(kinds['same'], 'result')}")
    problems = [cell for cell in cells if cell.kind in ("conflict", "damaged")]
    for problem in problems:
        print_line(f"{problem.kind}: {problem.cell_id}: {problem.reason}", style="yellow")
    if problems:
        raise typer.Exit(1)
