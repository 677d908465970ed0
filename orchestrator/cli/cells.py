"""``cells``: list the cells of a grid with their states and accuracies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import table_console, with_options
from orchestrator.cli.workspace import ResultsWorkspace
from orchestrator.util.console import plain_table
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from orchestrator.core.cell import Cell
    from orchestrator.store.results import Failure, Result


def _filter(help_text: str) -> Any:
    return typer.Option(metavar="A,B", help=f"{help_text}; several with commas")


Names = list[str] | None


@with_options
def cells(
    method: Annotated[Names, _filter("cells of this method")] = None,
    label: Annotated[Names, _filter("cells with this label in the grid, such as bolt[rank=8]")] = None,
    dataset: Annotated[Names, _filter("cells that adapt to this dataset")] = None,
    k: Annotated[Names, typer.Option("--k", metavar="A,B", help="cells with k labelled images a class")] = None,
    seed: Annotated[Names, _filter("cells with this seed")] = None,
    track: Annotated[Names, _filter("cells of this track")] = None,
    backbone: Annotated[Names, _filter("cells of this backbone")] = None,
    domain: Annotated[Names, _filter("cells of this domain")] = None,
    protocol: Annotated[Names, _filter("cells of this protocol")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="cells with a result")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="cells whose last attempt failed")] = False,
    open_: Annotated[bool, typer.Option("--open", help="cells with neither a result nor a failure")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON list with all fields")] = False,
    *,
    workspace: ResultsWorkspace,
) -> None:
    """List the cells of a grid.

    Each line has a cell's state, accuracy and id. The commands `inspect` and `export` take the id. A cell is listed if
    it matches every filter. Methods that use no support match every --k and --seed, as in `grid --only`.
    """
    from orchestrator.grid.options import select_cells

    wanted = {
        "method": method, "label": label, "dataset": dataset, "k": k, "seed": seed, "track": track,
        "backbone": backbone, "domain": domain, "protocol": protocol,
    }  # fmt: skip
    states = {state for state, asked in (("finished", finished), ("failed", failed), ("open", open_)) if asked}
    filters = [f"{key}={value}" for key, values in wanted.items() for value in values or ()]
    selected = select_cells(workspace.grid.cells, filters, workspace.grid.label, "--")
    done, recorded, _ = workspace.store.read_outcomes([cell.id for cell in selected])
    results, failures = {result.cell.id: result for result in done}, {failure.id: failure for failure in recorded}
    records = [
        cell_record(cell, workspace.grid.label(cell), results.get(cell.id), failures.get(cell.id)) for cell in selected
    ]
    shown = [record for record in records if not states or record["state"] in states]
    if as_json:
        typer.echo(json.dumps(shown, indent=1))
        return
    table = plain_table("state", "accuracy", "seconds", right=("accuracy", "seconds"))
    table.add_column("method", no_wrap=True)
    table.add_column("cell", no_wrap=True, overflow="fold")
    errors = any(one["error"] for one in shown)
    if errors:
        table.add_column("error", no_wrap=True, overflow="ellipsis")
    for one in shown:
        table.add_row(
            one["state"],
            "-" if one["accuracy"] is None else f"{one['accuracy']:.2f}",
            "-" if one["seconds"] is None else f"{one['seconds']:.1f}",
            one["label"],
            one["id"],
            *([one["error"] or ""] if errors else []),
            style={"failed": "red", "open": "dim"}.get(one["state"]),
        )
    if shown:
        table_console().print(table)
    typer.echo(f"{pluralize(len(shown), 'cell')} of {len(workspace.grid.cells):,} in {workspace.store.url}")


def cell_record(cell: Cell, label: str, result: Result | None, failure: Failure | None) -> dict[str, Any]:
    """Return the fields of a cell that ``cells --json`` prints. The accuracies are those of :attr:`Result.accuracies`.

    The fields of a result are ``None`` without a result, and the fields of a failure without a failure.
    """
    return {
        "id": cell.id,
        "state": "finished" if result else "failed" if failure else "open",
        "track": cell.track,
        "protocol": cell.protocol.name,
        "backbone": cell.backbone.name,
        "domain": cell.domain,
        "dataset": cell.dataset.name,
        "k": cell.shots,
        "method": cell.method.name,
        "label": label,
        "seed": cell.seed,
        "settings": cell.method.settings_dict(),
        "accuracy": result.accuracies[0] if result else None,
        "accuracy_zero_shot": result.accuracies[1] if result else None,
        "accuracy_by_dataset": {e.dataset: e.accuracy for e in result.evaluations} if result else None,
        "trainable_parameters": result.trainable_parameters if result else None,
        "seconds": result.timings.total if result else None,
        "peak_memory_mib": result.peak_memory_mib if result else None,
        "finished_at": result.manifest.finished_at if result else None,
        "error": failure.error if failure else None,
        "attempts": failure.attempts if failure else None,
        "log": failure.log if failure else None,
    }
