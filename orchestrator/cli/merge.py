"""``merge``: take over the results of another store."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import DEFAULT_STORE, StoreUrl, store_url
from orchestrator.util.console import print_line
from orchestrator.util.units import pluralize


def merge(
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER_STORE", callback=store_url, help="the store to take results from, read only"),
    ],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Take over the results of another store.

    Results come with their adapters and predictions, failures with their logs. Nothing in --store is overwritten: a
    cell with other scores in the two stores is named as a conflict, and the exit code is 1. The command can be killed
    and repeated.
    """
    from orchestrator.sharing.merge import BATCH, merge_stores
    from orchestrator.store import Store

    def show(done: int, of: int) -> None:
        if of > BATCH:
            print_line(f"{done:,} of {of:,} cells looked at", style="dim")

    found = merge_stores(Store(store), Store(other), show)
    taken, adapters = pluralize(len(found.taken), "result"), pluralize(found.adapters, "adapter")
    print_line(f"taken over: {taken}, {adapters}, {pluralize(len(found.failures), 'failure')}")
    print_line(f"already here with the same scores: {pluralize(found.same, 'result')}")
    for problem in found.problems:
        print_line(f"{problem.kind}: {problem.cell_id}: {problem.reason}", style="yellow")
    if found.problems:
        raise typer.Exit(1)
