"""Grids: YAML files that expand to cells.

``load.py`` reads a grid file and gives a :class:`Grid`; start there. ``schema.py`` says what a file may hold,
``expand.py`` makes cells of a block, ``options.py`` has ``--set`` and ``--only``.
"""

from orchestrator.grid.load import Grid, grid_names, load_grid
from orchestrator.grid.sources import SourcePlan

__all__ = ["Grid", "SourcePlan", "grid_names", "load_grid"]
