"""The report of a grid: tables, figures and one HTML page, from its results alone."""

from __future__ import annotations

from orchestrator.report.analysis.rows import Row, SourceRow, rows_of
from orchestrator.report.terminal import terminal_summary
from orchestrator.report.write import ReportFiles, write_report

__all__ = ["ReportFiles", "Row", "SourceRow", "rows_of", "terminal_summary", "write_report"]
