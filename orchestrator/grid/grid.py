"""A grid: the cells of a grid file, and everything that is known of them before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.catalog import BackboneEntry, CheckpointEntry, DatasetEntry
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.grid.sources import SourcePlan


@dataclass(frozen=True)
class Grid:
    """The cells of a grid file.

    Attributes:
        name: of the file, without its suffix.
        cells: the selected cells, each once, in the order of the file.
        all_cells: the cells before ``--only`` and ``--limit``.
        sources: every source model that the selected cells use, and how it is made.
        datasets: the datasets whose images are read: targets, scored datasets, and those of the sources that are not
            adopted.
        labels: what reports call the method of a cell: its ``as`` label, its name, or ``name[setting=value]``.
        smallest_difference: the smallest difference between two methods that matters, in points of accuracy.
    """

    name: str
    title: str
    description: str
    cells: tuple[Cell, ...]
    all_cells: tuple[Cell, ...]
    sources: Mapping[SourceRef, SourcePlan]
    datasets: Mapping[str, DatasetEntry]
    backbones: Mapping[str, BackboneEntry]
    labels: Mapping[Cell, str]
    smallest_difference: float

    def label(self, cell: Cell) -> str:
        """What reports call the method of a cell. Raises ``KeyError`` for a cell of another grid."""
        return self.labels[cell]

    def including(self, other: Grid) -> Grid:
        """This grid with the cells of another one behind its own. The labels of its own cells stay."""
        return replace(
            self,
            cells=tuple(dict.fromkeys((*self.cells, *other.cells))),
            all_cells=tuple(dict.fromkeys((*self.all_cells, *other.cells))),
            labels={**other.labels, **self.labels},
            sources={**other.sources, **self.sources},
        )

    @property
    def adopted_checkpoints(self) -> list[CheckpointEntry]:
        """The adopted checkpoints among the sources."""
        return [plan.recipe for plan in self.sources.values() if isinstance(plan.recipe, CheckpointEntry)]
