"""Draws the figures of many panels in several processes. Most of the time that a large report takes is drawing."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from threading import Thread

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.registry import (
    PANEL_FIGURES,
    PanelFigure,
    PanelFigures,
    figure_kinds,
    figures_of_kind,
    panel_figures,
)
from orchestrator.util.machine import usable_processors

_MOST_PROCESSES = 4
_FIGURES_PER_PROCESS = 24
"""With fewer figures, one more process takes longer to start than it saves."""

_Task = tuple[int, str]
"""What a process draws at a time: the figures of one kind of the panel with this number."""


class FigurePool:
    """Draws the figures of all panels: in other processes from the start, and in this one while it waits.

    The figures do not depend on the number of processes. Other processes are started for large reports only. They
    import the main module again, so a script that writes a report must do so under ``if __name__ == "__main__"``.

    Used as a context manager, it leaves no process.
    """

    def __init__(self, study: Study, processes: int | None = None) -> None:
        self._study, self._executor = study, ExitStack()
        self._waiting: deque[_Task] = deque()
        self._drawn: dict[_Task, list[FigureFile]] = {}
        self._threads: list[Thread] = []
        if processes is None:
            drawn = [panel for panel in study.panels if figure_kinds(panel)]
            figures = sum(6 + 2 * len(panel.ks) for panel in drawn)  # about
            processes = min(_MOST_PROCESSES, usable_processors(), figures // _FIGURES_PER_PROCESS)
        if processes > 1:
            self._waiting.extend(_tasks(study))
            # Figures do not read what is left out here, and most of a study's size is in its results.
            small = replace(
                study, results=(), rows=(), planned=(), missing=(), failures=(), sources=(), labels={}, names_of=None
            )
            small.display_names  # noqa: B018  # cached here, because computing it imports all methods, and with them torch
            # Pickled here, because this process fills the caches of panels while a thread below starts a process.
            # The thread also waits until that process has imported everything, which takes seconds.
            spawn = multiprocessing.get_context("spawn")
            executor = ProcessPoolExecutor(processes - 1, spawn, _set_study, (pickle.dumps(small),))
            self._executor.callback(executor.shutdown)
            self._threads = [Thread(target=self._draw_elsewhere, args=(executor,)) for _ in range(processes - 1)]
            for thread in self._threads:
                thread.start()

    def __enter__(self) -> FigurePool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.clear()
        self._executor.close()

    def figures(self) -> dict[Panel, PanelFigures]:
        """The figures of every panel. This process draws from the end what no other process has begun."""
        with suppress(IndexError):
            while True:
                task = self._waiting.pop()
                self._drawn[task] = _draw_task(self._study, task)
        for thread in self._threads:
            thread.join()
        panels = enumerate(self._study.panels)
        return {panel: panel_figures(panel, partial(self._figures_of_kind, index)) for index, panel in panels}

    def _draw_elsewhere(self, executor: ProcessPoolExecutor) -> None:
        """Give one process of the pool a task at a time. What it fails to draw, :meth:`figures` draws."""
        with suppress(IndexError, BrokenProcessPool):  # a process may be killed, for example for its memory
            while True:
                task = self._waiting.popleft()
                future = executor.submit(_draw, task)
                if future.exception() is None:
                    self._drawn[task] = future.result()

    def _figures_of_kind(self, index: int, kind: PanelFigure) -> list[FigureFile]:
        task = (index, kind.name)
        return self._drawn[task] if task in self._drawn else _draw_task(self._study, task)


def _tasks(study: Study) -> list[_Task]:
    """What to draw. Of a panel of ablations, only figures of variants: it seldom has others."""
    return [
        (i, kind.name)
        for i, panel in enumerate(study.panels)
        for kind in figure_kinds(panel)
        if kind.section == "variants" or not panel.key.ablations
    ]


def _draw_task(study: Study, task: _Task) -> list[FigureFile]:
    kind = next(kind for kind in PANEL_FIGURES if kind.name == task[1])
    return figures_of_kind(study, study.panels[task[0]], kind)


_studies: list[Study] = []
"""In a process of the pool, the study whose figures it draws."""


def _set_study(pickled: bytes) -> None:
    _studies.append(pickle.loads(pickled))


def _draw(task: _Task) -> list[FigureFile]:
    return _draw_task(_studies[0], task)
