"""The figures of a panel: each function returns a ``FigureFile``, or ``None`` where there is nothing to draw."""

from __future__ import annotations

from orchestrator.report.figures.by_dataset import accuracy_radar, by_dataset, dataset_bars, gain_map
from orchestrator.report.figures.costs import accuracy_against_costs
from orchestrator.report.figures.curves import accuracy_after_epochs, accuracy_against_k
from orchestrator.report.figures.variants import accuracy_against_settings, effects_of_settings

__all__ = [
    "accuracy_after_epochs",
    "accuracy_against_costs",
    "accuracy_against_k",
    "accuracy_against_settings",
    "accuracy_radar",
    "by_dataset",
    "dataset_bars",
    "effects_of_settings",
    "gain_map",
]
