"""Cells in this process, without Ray."""

from pathlib import Path

from orchestrator.core.events import CellEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.backend import run_cells_locally
from tests.helpers import cells as samples


def test_local_cells_report_the_same_events_as_on_ray(tmp_path: Path) -> None:
    cells = [samples.cell(number) for number in (0, 1, 2, 7, 8)]
    events: list[CellEvent] = []
    run_cells_locally(cells, RunSettings(str(tmp_path)), on_event=events.append, runner=f"{samples.HERE}:misbehave")
    assert [event.cell.seed for event in events if event.kind == "started"] == [0, 1, 2, 7, 8]
    last = {event.cell.seed: event for event in events}
    assert (last[1].error, last[1].recorded) == ("ValueError: one too many", True)
    assert (last[7].error, last[7].recorded) == ("OSError: no space left on device", False)
    assert last[8].kind == "finished"
