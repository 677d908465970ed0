"""``cells``: list the cells of a grid with their states and accuracies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.options import GridName, SetValues, StoreSettings, table_console, with_settings
from orchestrator.cli.workspace import open_workspace, results_overrides
from orchestrator.util.console import plain_table
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from orchestrator.core.cell import Cell
    from orchestrator.grid import Grid
    from orchestrator.store import Store
    from orchestrator.store.results import Failure, Result

State = Literal["finished", "failed", "open"]


def _filter(help_text: str) -> Any:
    return typer.Option(metavar="A,B", help=f"{help_text}; several with commas")


Names = list[str] | None


@with_settings
def cells(
    grid: GridName,
    set_: SetValues = None,
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
    settings: StoreSettings,
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
    workspace = open_workspace(grid, settings, overrides=results_overrides(grid, settings, set_))
    filters = [f"{key}={value}" for key, values in wanted.items() for value in values or ()]
    selected = select_cells(workspace.grid.cells, filters, workspace.grid.label, "--")
    found = list_cells(workspace.grid, selected, workspace.store)
    shown = [cell for cell in found if not states or cell.state in states]
    if as_json:
        typer.echo(json.dumps([cell.record() for cell in shown], indent=1))
        return
    table = plain_table("state", "accuracy", "seconds", right=("accuracy", "seconds"))
    table.add_column("method", no_wrap=True)
    table.add_column("cell", no_wrap=True, overflow="fold")
    errors = any(one.failure for one in shown)
    if errors:
        table.add_column("error", no_wrap=True, overflow="ellipsis")
    for one in shown:
        table.add_row(
            one.state,
            f"{one.accuracy:.2f}" if one.accuracy is not None else "-",
            f"{one.result.timings.total:.1f}" if one.result else "-",
            one.label,
            one.cell.id,
            *([one.failure.error if one.failure else ""] if errors else []),
            style={"failed": "red", "open": "dim"}.get(one.state),
        )
    if shown:
        table_console().print(table)
    typer.echo(f"{pluralize(len(shown), 'cell')} of {len(workspace.grid.cells):,} in {workspace.store.url}")


@dataclass(frozen=True)
class ListedCell:
    """A cell with its label in a grid, and its result or its recorded failure, if any."""

    cell: Cell
    label: str
    result: Result | None
    failure: Failure | None

    @property
    def state(self) -> State:
        """The state of the cell: ``open`` if it has neither a result nor a recorded failure."""
        if self.result is not None:
            return "finished"
        return "open" if self.failure is None else "failed"

    @property
    def accuracy(self) -> float | None:
        """The accuracy in per cent, as in :attr:`Result.accuracies`; ``None`` without a result."""
        return self.result.accuracies[0] if self.result else None

    def record(self) -> dict[str, Any]:
        """Return the fields that ``cells --json`` prints. Fields of the result are ``None`` without a result."""
        cell, result, failure = self.cell, self.result, self.failure
        return {
            "id": cell.id,
            "state": self.state,
            "track": cell.track,
            "protocol": cell.protocol.name,
            "backbone": cell.backbone.name,
            "domain": cell.domain,
            "dataset": cell.dataset.name,
            "k": cell.shots,
            "method": cell.method.name,
            "label": self.label,
            "seed": cell.seed,
            "settings": cell.method.settings_dict(),
            "accuracy": self.accuracy,
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


def list_cells(grid: Grid, cells: Sequence[Cell], store: Store) -> list[ListedCell]:
    """Return each cell with its result or failure. A damaged result is renamed, so that its cell is open again."""
    done, failed, _ = store.read_outcomes([cell.id for cell in cells])
    results, failures = {result.cell.id: result for result in done}, {failure.id: failure for failure in failed}
    return [ListedCell(cell, grid.label(cell), results.get(cell.id), failures.get(cell.id)) for cell in cells]
