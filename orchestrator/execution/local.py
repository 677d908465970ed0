"""Run cells in this process, one after the other, without Ray: for ``--local``, tests and debuggers."""

from __future__ import annotations

import pkgutil
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent
from orchestrator.store.failure_kind import RunStopped
from orchestrator.util.errors import one_line

if TYPE_CHECKING:
    from orchestrator.cells.outcome import CellOutcome
    from orchestrator.core.settings import RunSettings

    Runner = Callable[[Cell, RunSettings], CellOutcome]

RUNNER = "orchestrator.cells.trial:run_and_record"
"""The function that runs one cell and records its outcome, as ``module:function``.

It is given by name because a worker resolves it: the driver does not have to import what a worker needs.
"""


def run_cells_locally(
    cells: Iterable[Cell],
    settings: RunSettings,
    *,
    on_event: Callable[[CellEvent], None],
    runner: str = RUNNER,
) -> None:
    """Run cells in the order given and report every event to ``on_event``. A cell that fails does not stop the others.

    Raises :class:`~orchestrator.store.failure_kind.RunStopped` when the store cannot be used.
    """
    run: Runner = pkgutil.resolve_name(runner)
    for cell in cells:
        on_event(CellEvent(cell, "started"))
        try:
            outcome = run(cell, settings)
        except Exception as error:
            event = CellEvent(cell, "failed", error=one_line(error), traceback=traceback.format_exc(), recorded=False)
        else:
            if outcome.problem == "store":
                raise RunStopped(settings.store_url, outcome.error)
            event = CellEvent(
                cell,
                outcome.status,
                seconds=outcome.seconds,
                error=outcome.error,
                traceback=outcome.traceback,
                recorded=not outcome.problem,
            )
        on_event(event)
