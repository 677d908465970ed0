"""The engine: plans grids of cells, runs them in this process or on Ray, stores results, and writes reports.

Start with :mod:`orchestrator.cli.session`, which runs a grid from its plan to its report. The science is in ``bolt``.
"""

__version__ = "0.1.0"
