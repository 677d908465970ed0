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
from orchestrator.report.registry import PanelFigure, PanelFigures, as_list, figure_kinds, panel_figures
from orchestrator.util.machine import usable_processors

_MOST_PROCESSES = 4
_FIGURES_PER_PROCESS = 24
"""With fewer figures, one more process takes longer to start than it saves."""


@contextmanager
def figure_pool(study: Study, processes: int | None = None) -> Iterator[Callable[[], dict[Panel, PanelFigures]]]:
    """Draw the figures of all panels: in other processes from the start, and in this one when the function is called.

    The figures do not depend on the number of processes. Other processes are started for large reports only. They
    import the main module again, so a script that writes a report must do so under ``if __name__ == "__main__"``.
    None of them is left at the end of the context.
    """
    if processes is None:
        count = sum(6 + 2 * len(panel.ks) for panel in study.panels if figure_kinds(panel))  # about
        processes = min(_MOST_PROCESSES, usable_processors(), count // _FIGURES_PER_PROCESS)
    # Figures do not read what is left out here, and most of a study's size is in its results.
    small = replace(
        study, results=(), rows=(), planned=(), missing=(), failures=(), sources=(), labels={}, names_of=None
    )
    small.display_names  # noqa: B018  # cached here, because computing it imports all methods, and with them torch
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bolt-figures-") as name:
        folder = Path(name)
        (folder / "study").write_bytes(pickle.dumps(small))
        others = [spawn.Process(target=_draw_in_process, args=(folder,), daemon=True) for _ in range(processes - 1)]

        def drawn(panel: Panel, kind: PanelFigure) -> list[FigureFile]:
            path = folder / f"{_task(study, panel, kind)}.drawn"
            return pickle.loads(path.read_bytes()) if path.exists() else as_list(kind.make(study, panel))

        def figures() -> dict[Panel, PanelFigures]:
            _draw(study, folder)
            for process in others:
                process.join()
            return {panel: panel_figures(panel, drawn) for panel in study.panels}

        try:
            for process in others:
                process.start()
            yield figures
        finally:
            for panel, kind in _tasks(study):  # so that no process begins another figure
                (folder / f"{_task(study, panel, kind)}.begun").touch()
            for process in others:
                if process.pid is not None:  # it was started
                    process.join()


def _tasks(study: Study) -> list[tuple[Panel, PanelFigure]]:
    """Panels with kinds to draw. Of a panel of ablations, only those of variants: it seldom has others."""
    return [
        (panel, kind)
        for panel in study.panels
        for kind in figure_kinds(panel)
        if kind.section == "variants" or not panel.key.ablations
    ]


def _task(study: Study, panel: Panel, kind: PanelFigure) -> str:
    """The name of a task, which begins the names of its files."""
    return f"{study.panels.index(panel)}-{kind.name}"


def _draw_in_process(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process too, which leaves no task to begin
    _draw(pickle.loads((folder / "study").read_bytes()), folder)


def _draw(study: Study, folder: Path) -> None:
    """Draw the tasks that no process has begun. The main process draws again what fails, and then raises the error."""
    for panel, kind in _tasks(study):
        task = _task(study, panel, kind)
        with suppress(Exception):
            (folder / f"{task}.begun").touch(exist_ok=False)  # raises FileExistsError if another process was first
            part = folder / f"{task}.part"
            part.write_bytes(pickle.dumps(as_list(kind.make(study, panel))))
            part.replace(folder / f"{task}.drawn")
