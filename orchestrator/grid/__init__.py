"""Grids: a YAML file, checked against the catalog and the methods, expanded to cells."""

from orchestrator.grid.expand import SourcePlan
from orchestrator.grid.load import Grid, grid_names, load_grid

__all__ = ["Grid", "SourcePlan", "grid_names", "load_grid"]
