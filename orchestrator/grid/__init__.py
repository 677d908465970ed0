"""Grids: YAML files that expand to cells.

Start with ``load.py``, which reads a grid file and returns a :class:`Grid`. ``schema.py`` has the fields of a file,
``expand.py`` makes the cells of a block, and ``options.py`` applies the options ``--set`` and ``--only``.
"""

from orchestrator.grid.load import Grid, grid_names, load_grid
from orchestrator.grid.sources import SourcePlan

__all__ = ["Grid", "SourcePlan", "grid_names", "load_grid"]
