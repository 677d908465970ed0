"""The words about a panel that tables and figures share: how many datasets and seeds, its part of a file name."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.text import DASH
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize


def panel_slug(panel: Panel) -> str:
    """A panel's part of a file name."""
    key = panel.key
    return slug(f"{key.track}_{key.domain}_{key.backbone}_{key.protocol}{'_ablations' * key.ablations}")


def expected_seeds(panel: Panel, method: str) -> int:
    """How many seeds a number of this method should be over."""
    return 1 if method in panel.fixed else len(panel.seeds)


def dataset_count(panel: Panel, what: str = "dataset") -> str:
    """How many datasets a panel's means are over; a range where it differs between k."""
    counts = sorted({len(panel.tests(k, averaged=True)) for k in panel.ks})
    return pluralize(DASH.join(dict.fromkeys((str(counts[0]), str(counts[-1])))), what)


def is_baseline(panel: Panel, method: str) -> bool:
    """Whether the method *is* the zero-shot accuracy, so that its gain says nothing."""
    return all(row.gain == 0 for row in panel.rows if row.method == method)


def seeds_words(panel: Panel) -> str:
    """How many seeds a deviation is over."""
    return f"n = {len(panel.seeds)}" if len(panel.seeds) != 1 else "n = 1, so none is given"
