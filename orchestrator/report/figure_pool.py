"""Draws the figures of many panels in several processes. Most of the time that a large report takes is drawing.

The processes share a folder of files and no lock or pipe: a process that is killed, for example for its memory, would
leave a lock held or half a message in a pipe, and the others would wait for ever.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.registry import PanelFigure, PanelFigures, figure_kinds, figures_of_kind, panel_figures
from orchestrator.util.machine import usable_processors

_MOST_PROCESSES = 4
_FIGURES_PER_PROCESS = 24
"""With fewer figures, one more process takes longer to start than it saves."""

_Drawn = dict[tuple[int, str], list[FigureFile]]
"""Number of a panel and name of a kind -> the figures of this kind."""


@contextmanager
def figure_pool(study: Study, processes: int | None = None) -> Iterator[Callable[[], dict[Panel, PanelFigures]]]:
    """Draw the figures of all panels: in other processes from the start, and in this one when the function is called.

    The figures do not depend on the number of processes. Other processes are started for large reports only. They
    import the main module again, so a script that writes a report must do so under ``if __name__ == "__main__"``.
    None of them is left at the end of the context.
    """
    if processes is None:
        drawn = [panel for panel in study.panels if figure_kinds(panel)]
        count = sum(6 + 2 * len(panel.ks) for panel in drawn)  # about
        processes = min(_MOST_PROCESSES, usable_processors(), count // _FIGURES_PER_PROCESS)
    if processes < 2:
        yield lambda: _by_panel(study, {})
        return
    # Figures do not read what is left out here, and most of a study's size is in its results.
    small = replace(
        study, results=(), rows=(), planned=(), missing=(), failures=(), sources=(), labels={}, names_of=None
    )
    small.display_names  # noqa: B018  # cached here, because computing it imports all methods, and with them torch
    tasks, spawn = _tasks(study), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bolt-figures-") as name:
        folder = Path(name)
        (folder / "study").write_bytes(pickle.dumps(small))
        others = [spawn.Process(target=_draw_into, args=(folder,), daemon=True) for _ in range(processes - 1)]

        def figures() -> dict[Panel, PanelFigures]:
            drawn: _Drawn = {}
            for index, (number, kind) in enumerate(tasks):
                if _begin(folder, index):
                    drawn[number, kind.name] = figures_of_kind(study, study.panels[number], kind)
            for process in others:
                process.join()
            for index, (number, kind) in enumerate(tasks):
                if (path := folder / f"{index}.drawn").exists():
                    drawn[number, kind.name] = pickle.loads(path.read_bytes())
            return _by_panel(study, drawn)

        try:
            for process in others:
                process.start()
            yield figures
        finally:
            for index in range(len(tasks)):  # so that no process begins another figure
                _begin(folder, index)
            for process in others:
                if process.pid is not None:  # it was started
                    process.join()


def _by_panel(study: Study, drawn: _Drawn) -> dict[Panel, PanelFigures]:
    """The figures of every panel. Those that are not in ``drawn`` are drawn here."""
    return {
        panel: panel_figures(study, panel, {kind: made for (of, kind), made in drawn.items() if of == number})
        for number, panel in enumerate(study.panels)
    }


def _tasks(study: Study) -> list[tuple[int, PanelFigure]]:
    """Numbers of panels with kinds to draw. Of a panel of ablations, only those of variants: it seldom has others."""
    return [
        (number, kind)
        for number, panel in enumerate(study.panels)
        for kind in figure_kinds(panel)
        if kind.section == "variants" or not panel.key.ablations
    ]


def _begin(folder: Path, index: int) -> bool:
    """Whether this process is the first that begins a task."""
    try:
        (folder / f"{index}.begun").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _draw_into(folder: Path) -> None:
    """In another process: draw the tasks that no process has begun. What fails is drawn by the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process too, which leaves no task to begin
    study: Study = pickle.loads((folder / "study").read_bytes())
    for index, (number, kind) in enumerate(_tasks(study)):
        with suppress(Exception):
            if _begin(folder, index):
                part = folder / f"{index}.part"
                part.write_bytes(pickle.dumps(figures_of_kind(study, study.panels[number], kind)))
                part.replace(folder / f"{index}.drawn")
