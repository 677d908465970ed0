"""Drawing the figures of many panels in several processes: a large report is mostly the drawing of its figures."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.registry import PanelFigures, panel_figures
from orchestrator.util.machine import usable_processors

if TYPE_CHECKING:
    from orchestrator.report.styles import Styles

_WORTH_IT = 24
"""Figures from which on another process draws sooner than it takes to start."""
_MOST = 4
_TABLES = 0.06
"""By how much making the tables takes longer than a process takes to start, as a share of drawing all figures."""


class Drawing:
    """The figures of every panel while they are drawn: by other processes from the start, by this one when asked.

    So its own work goes on beside theirs. The figures are the same whatever the number of processes, which follows
    from how many there are to draw. Used as a context, nothing is left running.
    """

    def __init__(self, study: Study, styles: Styles, processes: int | None = None) -> None:
        self._study, self._styles = study, styles
        loads = {i: figure_count(panel) for i, panel in enumerate(study.panels)}
        total = sum(loads.values())
        if processes is None:
            processes = max(1, min(_MOST, usable_processors(), total // _WORTH_IT))
        shares: list[list[int]] = [[] for _ in range(processes)]
        busy = [_TABLES * total if place == 0 else 0.0 for place in range(processes)]
        for i in sorted(loads, key=lambda i: -loads[i]):
            least = min(range(processes), key=lambda place: busy[place])
            shares[least].append(i)
            busy[least] += loads[i]
        self._own, *others = shares
        self._children = [(share, _start(study, share, styles)) for share in others if share]

    def __enter__(self) -> Drawing:
        return self

    def __exit__(self, *exception: object) -> None:
        for _, child in self._children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def finish(self) -> dict[Panel, PanelFigures]:
        """Draw what is left to this process and wait for the others."""
        panels = self._study.panels
        drawn = dict(zip(self._own, _drawn(self._study, self._own, self._styles), strict=True))
        for share, child in self._children:
            # A child that fell says why on stderr; what it was to draw is drawn here, or fails here where it is seen.
            out, _ = child.communicate()
            found = pickle.loads(out) if child.returncode == 0 else _drawn(self._study, share, self._styles)
            drawn.update(zip(share, found, strict=True))
        return {panel: drawn[i] for i, panel in enumerate(panels)}


def figure_count(panel: Panel) -> int:
    """About how many figures a panel has."""
    return 0 if panel.of_switch else 4 + 2 * min(len(panel.ks), 2) + len(panel.ks)


def serve() -> None:
    """What a child does: read a study, labels' styles and panels from stdin, write their figures to stdout."""
    study, share, styles = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(_drawn(study, share, styles)))


def _drawn(study: Study, share: Sequence[int], styles: Styles) -> list[PanelFigures]:
    return [panel_figures(study, study.panels[i], styles) for i in share]


def _start(study: Study, share: list[int], styles: Styles) -> subprocess.Popen[bytes]:
    """A child that draws these panels; of the results it gets those of methods with variants, without what is large."""
    ids = {
        row.cell_id
        for i in share
        for row in study.panels[i].rows
        if len(study.panels[i].methods) > len({study.method_names[m] for m in study.panels[i].methods})
    }
    needed = replace(
        study,
        results=tuple(replace(result, evaluations=(), curves={}) for result in study.results if result.cell.id in ids),
        rows=(),
        planned=(),
        missing=(),
        failures=(),
        names_of=None,
    )
    command = [sys.executable, "-c", "from orchestrator.report.figure_pool import serve; serve()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    try:
        pickle.dump((needed, share, dict(styles)), child.stdin)
        child.stdin.close()
    except BrokenPipeError:
        pass
    child.stdin = None
    return child
