"""The report of a grid: tables, figures and one HTML page, made from the grid's results alone.

Rows (``orchestrator.analysis``) become comparison groups in ``analysis/``. ``registry`` lists every kind of table and
figure; ``tables/``, ``figures/``, ``costs`` and ``paper/`` (tables beside published numbers) make them. ``page/`` makes
HTML pages, and ``write`` writes everything into a folder. Start reading in ``registry.py``.
"""

from orchestrator.report.analysis import GridResults
from orchestrator.report.terminal import terminal_summary
from orchestrator.report.write import write_report

__all__ = ["GridResults", "terminal_summary", "write_report"]
