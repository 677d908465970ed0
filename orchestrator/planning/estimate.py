"""What a plan will take: bytes from shapes, seconds from measured cells, else from arithmetic. Says which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

from bolt.methods import METHODS
from orchestrator.artifacts.kinds import (
    AdoptedSource,
    DomainTotal,
    Head,
    Images,
    MetaStart,
    Need,
    SourceDirections,
    SourceModel,
    SupportFeatures,
    SupportImages,
    TestFeatures,
)
from orchestrator.catalog import BackboneEntry, Catalog
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.datasets.images import SHORT_SIDE_CAP
from orchestrator.store.results import Result
from orchestrator.tracks import TRACKS

GPU_TFLOPS = 20.0
"""Sustained 10^12 operations a second of one data-centre GPU, where nothing was measured: about what float32
matrix products with TF32 reach on an A100 in networks of this size. An assumption, printed as one."""

CORE_TFLOPS = 0.02
"""The same for one CPU core: what two server cores reached on networks of this size. An assumption, printed as one."""

TRAINING_FACTOR = 3.0
"""Forward and backward of a network, in forwards."""

TYPICAL_SIDE = 430
"""Side of the square that has the pixels of a 500 x 375 photograph, for datasets whose catalog entry says nothing."""


@dataclass(frozen=True)
class Estimate:
    """How long the open part of a plan takes.

    Attributes:
        measured_seconds: of the cells whose backbone, method and k have finished cells, by the mean of those.
        measured_on: the devices those ran on.
        measured_cells: how many cells that is.
        computed_tflop: 10^12 operations of all other cells and of the artifacts to build.
        computed_cells: how many cells that is.
    """

    measured_seconds: float
    measured_on: tuple[str, ...]
    measured_cells: int
    computed_tflop: float
    computed_cells: int

    @property
    def words(self) -> str:
        """The estimate, and what it is based on."""
        parts = []
        if self.measured_cells:
            parts.append(
                f"{_duration(self.measured_seconds)} on one device for {self.measured_cells:,} cells, by finished "
                f"cells of the same backbone, method and k on {', '.join(self.measured_on)}"
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


def estimate(cells: Sequence[Cell], needs: Iterable[Need], done: Sequence[Result], catalog: Catalog) -> Estimate:
    """Estimate the open part of a plan."""
    measured: dict[tuple[str, str, int], list[Result]] = defaultdict(list)
    for result in done:
        measured[_kind(result.cell)].append(result)
    known = {kind: count for kind, count in Counter(map(_kind, cells)).items() if kind in measured}
    seconds = sum(count * fmean(result.timings.total for result in measured[kind]) for kind, count in known.items())
    devices = {result.manifest.device for kind in known for result in measured[kind]}
    from_measured = sum(known.values())
    gflop = sum(cell_gflops(cell, catalog) for cell in cells if _kind(cell) not in known)
    gflop += sum(artifact_gflops(need, catalog) for need in needs)
    return Estimate(seconds, tuple(sorted(devices)), from_measured, gflop / 1e3, len(cells) - from_measured)


def _kind(cell: Cell) -> tuple[str, str, int]:
    """Cells of one kind take about as long."""
    return cell.backbone.name, cell.method.name, cell.shots


def cell_gflops(cell: Cell, catalog: Catalog) -> float:
    """10^9 operations of a cell in the backbone; 0 where it reads cached features only."""
    method = METHODS[cell.method.name]
    settings = _settings(cell.method, cell.track)
    entry = catalog.dataset(cell.dataset.name)
    epochs = getattr(settings, "epochs", 0) if method.changes_tower else 0
    track = TRACKS[cell.track]
    work = track.work(method, settings, cell.shots * entry.classes, entry.sizes.test)
    scored = sum(catalog.dataset(ref.name).sizes.test for ref in cell.evaluate_on) if method.changes_tower else 0
    images = work.forward + scored + TRAINING_FACTOR * work.training
    if track.scored_after_epochs:
        images += epochs * scored
    return images * catalog.backbone(cell.backbone.name).gflops_per_image


@lru_cache(maxsize=1024)
def _settings(method: MethodRef, track: str) -> Any:
    """A method's settings; many cells share them, and making them is most of what counting a cell's work costs."""
    return METHODS[method.name].configure(method.settings_dict(), track)


def artifact_gflops(need: Need, catalog: Catalog) -> float:
    """10^9 operations of building an artifact in the backbone; 0 for images and algebra."""
    match need:
        case TestFeatures():
            images: float = catalog.dataset(need.dataset.name).sizes.test
        case SupportFeatures():
            images = _support_rows(need, catalog) * (need.views + 1)
        case SourceModel():
            entry = catalog.dataset(need.dataset.name)
            images = TRAINING_FACTOR * entry.sizes.train * (need.recipe.epochs or 1) + entry.sizes.test
        case MetaStart():
            drawn = need.recipe.support * need.recipe.inner_steps + need.recipe.query
            twice = 2 if need.recipe.variant == "maml" else 1
            images = TRAINING_FACTOR * twice * need.recipe.steps * need.recipe.tasks_per_step * drawn
        case _:
            return 0.0
    return images * catalog.backbone(need.backbone.name).gflops_per_image


def _support_rows(need: SupportFeatures, catalog: Catalog) -> int:
    return catalog.dataset(need.dataset.name).classes * need.support.shots


def artifact_bytes(need: Need, catalog: Catalog) -> int:
    """About how many bytes an artifact takes in the store."""
    match need:
        case Images():
            entry = catalog.dataset(need.dataset.name)
            count = entry.sizes.train if need.split == "train" else entry.sizes.test
            side = min(entry.image_side or TYPICAL_SIDE, SHORT_SIDE_CAP * need.image_size)
            return count * 3 * (need.image_size if need.split == "test" else side) ** 2
        case SupportImages():
            entry = catalog.dataset(need.dataset.name)
            return entry.classes * need.shots * 3 * (entry.image_side or TYPICAL_SIDE) ** 2
        case Head():
            return 4 * catalog.dataset(need.dataset.name).classes * catalog.backbone(need.backbone.name).embed_dim
        case TestFeatures():
            return 4 * catalog.dataset(need.dataset.name).sizes.test * catalog.backbone(need.backbone.name).embed_dim
        case SupportFeatures():
            rows = _support_rows(need, catalog) * (need.views + 1)
            return 4 * rows * catalog.backbone(need.backbone.name).embed_dim
        case SourceModel() | AdoptedSource() | MetaStart():
            return 4 * catalog.backbone(need.backbone.name).parameters
        case SourceDirections():
            return 4 * need.top_k * _matrix_sides(catalog.backbone(need.source.backbone.name))
        case DomainTotal():
            return 8 * catalog.backbone(need.sources[0].backbone.name).parameters
        case _:
            raise TypeError(f"no size is known for {type(need).__name__}")


def _matrix_sides(backbone: BackboneEntry) -> int:
    """Sum of rows and columns over all weight matrices of an image tower."""
    width = backbone.width
    block = (3 * width + width) + (width + width) + 2 * (4 * width + width)
    return backbone.layers * block + width + backbone.embed_dim
