"""How long a plan takes: measured where cells like its own have finished, else from counted operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bolt.methods import METHODS
from orchestrator.artifacts.spec import TRAINING_FACTOR, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.planning.cost import CostModel
from orchestrator.tracks import TRACKS

GPU_TFLOPS = 20.0
"""Assumed speed of one data-centre GPU in 10^12 operations a second, printed as an assumption. Float32 matrix products
with TF32 reach about this on an A100 in networks of this size."""

CORE_TFLOPS = 0.02
"""Assumed speed of one CPU core, which two server cores reached on networks of this size."""


@dataclass(frozen=True)
class Estimate:
    """How long cells and artifacts take.

    Attributes:
        measured_seconds: predicted time of the cells with measured relatives (``cost.py``), one after the other.
        measured_on: the devices of the measurements.
        measured_cells: the number of these cells.
        computed_tflop: 10^12 operations of all other cells and of the artifacts.
        computed_cells: the number of these cells.
    """

    measured_seconds: float
    measured_on: tuple[str, ...]
    measured_cells: int
    computed_tflop: float
    computed_cells: int

    @property
    def summary(self) -> str:
        """The estimate as text, with what it is based on."""
        parts = []
        if self.measured_cells:
            parts.append(
                f"{_duration(self.measured_seconds)} on one device for {self.measured_cells:,} cells, by finished "
                f"cells like them on {', '.join(self.measured_on)}"
            )
        if self.computed_cells or self.computed_tflop:
            what = f"{self.computed_cells:,} cells and the artifacts" if self.computed_cells else "the artifacts"
            on_gpu, on_core = (_duration(self.computed_tflop / speed) for speed in (GPU_TFLOPS, CORE_TFLOPS))
            parts.append(
                f"{on_gpu} of one GPU, or {on_core} of one CPU core, for {what}, by counted operations at an assumed "
                f"{GPU_TFLOPS:g} TFLOP/s a GPU and {CORE_TFLOPS:g} a core"
            )
        return "; ".join(parts) or "nothing to do"


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


def estimate(
    cells: Iterable[Cell], artifacts: Iterable[ArtifactSpec], costs: CostModel, devices: Iterable[str], catalog: Catalog
) -> Estimate:
    """Estimate the time of cells and artifacts.

    Args:
        cells: the cells to do.
        artifacts: the artifacts to build; their operations are counted, never measured.
        costs: predicts the cells' seconds.
        devices: where the finished cells ran that ``costs`` has learned from.
        catalog: sizes of datasets and backbones.
    """
    work = [costs.work(cell) for cell in cells]
    seconds = [costs.seconds(one) for one in work]
    measured = [found for found in seconds if found is not None]
    gflop = sum(one.gflop for one, found in zip(work, seconds, strict=True) if found is None)
    gflop += sum(artifact.gflops(catalog) for artifact in artifacts)
    return Estimate(sum(measured), tuple(sorted(devices)), len(measured), gflop / 1e3, len(work) - len(measured))


def cell_gflops(cell: Cell, catalog: Catalog) -> float:
    """10^9 operations of a cell in the backbone, training included; 0 for a cell that only reads cached features."""
    method = METHODS[cell.method.name]
    settings = _settings(cell.method, cell.track)
    entry = catalog.dataset(cell.dataset.name)
    epochs = getattr(settings, "epochs", 0) if method.changes_tower else 0
    track = TRACKS[cell.track]
    work = track.tower_passes(method, settings, cell.shots * entry.classes, entry.sizes.test)
    scored = sum(catalog.dataset(ref.name).sizes.test for ref in cell.evaluate_on) if method.changes_tower else 0
    images = work.forward + scored + TRAINING_FACTOR * work.training
    if track.scored_after_epochs:
        images += epochs * scored
    return images * catalog.backbone(cell.backbone.name).gflops_per_image


@lru_cache(maxsize=1024)
def _settings(method: MethodRef, track: str) -> Any:
    """The settings of a method, cached: many cells share them, and making them takes most of the time of a count."""
    return TRACKS[track].configure(METHODS[method.name], method.settings_dict())
