"""Phrases about a panel that captions of tables and figures share."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.notation import DASH
from orchestrator.util.units import pluralize


def dataset_count(panel: Panel, noun: str = "dataset") -> str:
    """The number of datasets that a mean of the panel is over: ``8 datasets``, or ``6–8 datasets`` if k differ."""
    counts = sorted({len(panel.tests(k, averaged=True)) for k in panel.ks})
    return pluralize(DASH.join(dict.fromkeys((str(counts[0]), str(counts[-1])))), noun)


def seeds_text(panel: Panel) -> str:
    """The number of seeds that a deviation is over: ``n = 3``."""
    return f"n = {len(panel.seeds)}" if len(panel.seeds) != 1 else "n = 1, so none is given"


def deviation_text(panel: Panel, mark: str, of: str = "") -> str:
    """The caption sentence on a figure's error bars. ``mark``: what to call them; ``of``: what the deviation is of."""
    if len(panel.seeds) < 2:
        return f"One seed, so there are no {mark.lower()}: another support may differ by more than is seen here."
    return f"{mark}: ± one sample standard deviation{of and f' of {of}'} over n = {len(panel.seeds)} seeds."
