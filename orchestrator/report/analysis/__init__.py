"""The numbers of a report: groups of comparable rows, and variants of methods.

Start with ``GridResults`` and ``ComparisonGroup``, which arrange the rows of ``orchestrator.analysis``.
"""

from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults

__all__ = ["ComparisonGroup", "GridResults"]
