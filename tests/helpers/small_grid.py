"""A small catalog, a small grid and three methods that adapt nothing, for tests of how grids expand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bolt.methods import Method
from bolt.task.task import Adapted, Task
from orchestrator.grid import Grid

CATALOG = """
domains:
  little: {title: Little}
  lonely: {title: Lonely}
datasets:
  one: &entry
    title: One
    domain: little
    route: {kind: manual, instructions: none}
    prompts: plain
    classes: 2
    sizes: {train: 40, test: 10}
    kin: twins
    licence: CC0
  two: {<<: *entry, title: Two}
  three: {<<: *entry, title: Three, kin: null, smallest_class: 5}
  four: {<<: *entry, title: Four, kin: null, fine_tune_epochs: 3}
  seen: {<<: *entry, title: Seen, sizes: {train: 0, test: 10}, kin: null}
  wide: {<<: *entry, title: Wide, classes: 4, domain: lonely}
"""
GRID = """
title: Test
fine_tuning: {epochs: 2}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [one, two, four]
    shots: [1, 4]
    seeds: [1, 2]
    methods:
      - plain
      - trained
"""


@dataclass(frozen=True)
class TrainedSettings:
    rate: float = 0.1
    ranks: tuple[int, ...] = (1, 2)
    mode: str = "slow"

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; it must be above zero")


@dataclass(frozen=True)
class NoSettings:
    pass


def _adapt(task: Task, settings: Any) -> Adapted:
    raise AssertionError("expanding a grid adapts nothing")


_PLAIN = Method(_adapt, title="", paper="", settings_class=NoSettings)
STUB_METHODS = (
    replace(_PLAIN, name="plain", title="Plain", uses_support=False, tracks=frozenset({"fewshot", "ood", "tta"})),
    replace(_PLAIN, name="trained", title="Trained", settings_class=TrainedSettings, version=3, uses_sources=True),
    replace(_PLAIN, name="unlabelled", title="Unlabelled", tracks=frozenset({"tta"})),
)
LoadGrid = Callable[..., Grid]
"""Loads a grid from its text and the options of ``load_grid``; the file is ``g.yaml``."""


def cell_keys(grid: Grid) -> list[tuple[str, str, int, int]]:
    """Return (method, dataset, k, seed) of every cell."""
    return [(cell.method.name, cell.dataset.name, cell.shots, cell.seed) for cell in grid.cells]


def labels(grid: Grid) -> set[str]:
    return {grid.label(cell) for cell in grid.cells}
