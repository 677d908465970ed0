"""Draws the figures of many panels in several processes. Most of the time that a large report takes is drawing."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.registry import PanelFigure, PanelFigures, figure_kinds, figures_of_kind, panel_figures
from orchestrator.util.machine import usable_processors

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

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
    pickled, spawn = pickle.dumps(small), multiprocessing.get_context("spawn")
    # In shared memory: a process reads a pipe after its imports only, and starting it would wait for them.
    shared, begun = spawn.RawArray("c", len(pickled)), spawn.Value("i", 0)
    shared.raw = pickled
    with ProcessPoolExecutor(processes - 1, spawn, _set_work, (shared, begun)) as executor:
        elsewhere = [executor.submit(_draw_in_pool) for _ in range(processes - 1)]

        def figures() -> dict[Panel, PanelFigures]:
            drawn = _draw_next(study, begun)
            for future in elsewhere:
                if future.exception() is None:  # a process may be killed, for example for its memory
                    drawn.update(future.result())
            return _by_panel(study, drawn)

        try:
            yield figures
        finally:
            begun.value = len(_tasks(study))  # so that no process begins another figure


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


def _draw_next(study: Study, begun: Synchronized[int]) -> _Drawn:
    """Draw the figures that no process has begun, one kind of one panel at a time. All processes count in ``begun``."""
    drawn: _Drawn = {}
    tasks = _tasks(study)
    while True:
        with begun.get_lock():
            index = begun.value
            begun.value += 1
        if index >= len(tasks):
            return drawn
        number, kind = tasks[index]
        drawn[number, kind.name] = figures_of_kind(study, study.panels[number], kind)


_work: list[Any] = []
"""In a process of the pool, the arguments of :func:`_draw_next`."""


def _set_work(pickled: Any, begun: Synchronized[int]) -> None:
    _work[:] = pickle.loads(pickled.raw), begun


def _draw_in_pool() -> _Drawn:
    return _draw_next(*_work)
