"""Draws the figures of many panels in several processes. Most of the time that a large report takes is drawing."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.registry import PanelFigures, panel_figures
from orchestrator.util.machine import usable_processors

_MOST_PROCESSES = 4
_FIGURES_PER_PROCESS = 24
"""With fewer figures, one more process takes longer to start than it saves."""


class FigurePool:
    """Draws the figures of all panels: in other processes from the start, and in this one while it waits.

    The figures do not depend on the number of processes. Other processes are started for large reports only. They
    import the main module again, so a script that writes a report must do so under ``if __name__ == "__main__"``.

    Used as a context manager, it leaves no process running.
    """

    def __init__(self, study: Study, processes: int | None = None) -> None:
        self._study = study
        drawn = [i for i, panel in enumerate(study.panels) if not panel.of_changed_protocol]
        if processes is None:
            figures = sum(6 + 2 * len(study.panels[i].ks) for i in drawn)  # about
            processes = min(_MOST_PROCESSES, usable_processors(), figures // _FIGURES_PER_PROCESS)
        self._executor: ProcessPoolExecutor | None = None
        self._futures: dict[int, Future[PanelFigures]] = {}
        if processes > 1:
            # Figures do not read what is left out here, and most of a study's size is in its results.
            small = replace(
                study, results=(), rows=(), planned=(), missing=(), failures=(), sources=(), labels={}, names_of=None
            )
            spawn = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(processes - 1, spawn, _set_study, (small,))
            self._futures = {i: self._executor.submit(_draw, i) for i in drawn}

    def __enter__(self) -> FigurePool:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def figures(self) -> dict[Panel, PanelFigures]:
        """The figures of every panel. This process draws the panels that no other process has begun."""
        drawn = {}
        for i in reversed(self._futures):
            if self._futures[i].cancel():
                drawn[i] = panel_figures(self._study, self._study.panels[i])
        return {panel: drawn[i] if i in drawn else self._result(i, panel) for i, panel in enumerate(self._study.panels)}

    def _result(self, index: int, panel: Panel) -> PanelFigures:
        if index in self._futures:
            try:
                return self._futures[index].result()
            except BrokenProcessPool:  # a process died, for example because it was killed for its memory
                pass
        return panel_figures(self._study, panel)


_studies: list[Study] = []
"""In a process of the pool, the study whose figures it draws."""


def _set_study(study: Study) -> None:
    _studies.append(study)


def _draw(index: int) -> PanelFigures:
    return panel_figures(_studies[0], _studies[0].panels[index])
