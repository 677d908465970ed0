"""The report of a grid: tables, figures and one HTML page, made from the grid's results alone.

Rows (``orchestrator.analysis``) become comparison groups in ``analysis/``. ``registry`` lists every kind of table and
figure. ``tables/``, ``figures/`` and ``paper/`` (the paper's own tables and numbers) make them, and ``page/`` puts them
on HTML pages. ``write`` writes everything into a folder. Start reading in ``registry.py``.
"""

from __future__ import annotations

from orchestrator.analysis.rows import Row, SourceRow, rows_of
from orchestrator.report.analysis.grid_results import arrange_results
from orchestrator.report.terminal import terminal_summary
from orchestrator.report.write import write_report

__all__ = ["Row", "SourceRow", "arrange_results", "rows_of", "terminal_summary", "write_report"]
