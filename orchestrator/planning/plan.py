"""The plan of a grid: what is done, what is to do, what it takes. Nothing runs, and nothing heavy is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bolt.methods import METHODS
from orchestrator.artifacts.kinds import AdoptedSource, Images, Need, Source, SourceModel, SupportImages
from orchestrator.artifacts.requirements import needs_of
from orchestrator.catalog import (
    Catalog,
    CheckpointEntry,
    backbone_ref,
    dataset_ref,
    missing_checkpoint,
    missing_data,
    missing_weights,
)
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.grid import Grid
from orchestrator.planning.estimate import Estimate, artifact_bytes, estimate
from orchestrator.store import Store
from orchestrator.store.results import Failure, Result
from orchestrator.util.errors import UserError


@dataclass(frozen=True)
class PlannedArtifact:
    """One artifact the grid needs: whether it is there, and about how large it is or will be."""

    need: Need
    built: bool
    bytes: int


@dataclass(frozen=True)
class Plan:
    """A grid against a store.

    Attributes:
        cells: every cell of the grid, in the order they will run.
        done: results of the cells that are finished.
        failed: failures on record of cells that are not.
        damaged: ids of cells whose result file could not be read and was moved aside.
        artifacts: what the unfinished cells need, inputs first.
        retry_failed: whether cells on record as failed are to do again.
    """

    grid: Grid
    cells: tuple[Cell, ...]
    done: tuple[Result, ...]
    failed: tuple[Failure, ...]
    damaged: tuple[str, ...]
    artifacts: tuple[PlannedArtifact, ...]
    estimate: Estimate
    retry_failed: bool

    @cached_property
    def todo(self) -> tuple[Cell, ...]:
        """Cells that will run: neither finished nor (unless to be tried again) on record as failed."""
        finished = {result.cell.id for result in self.done}
        skipped = _skipped(self.failed, self.retry_failed)
        return tuple(cell for cell in self.cells if cell.id not in finished and cell.id not in skipped)

    @cached_property
    def missing(self) -> tuple[Need, ...]:
        """Artifacts to build, inputs first."""
        return tuple(planned.need for planned in self.artifacts if not planned.built)


def make_plan(
    grid: Grid, catalog: Catalog, store: Store, data_root: Path | None = None, *, retry_failed: bool = False
) -> Plan:
    """Compare a grid with a store. Damaged results are moved aside; nothing else is changed."""
    cells = in_running_order(grid.cells)
    done, damaged = store.read_results(cells)
    finished = {result.cell.id for result in done}
    on_record = store.read_failures()
    failed = tuple(on_record[cell.id] for cell in cells if cell.id in on_record and cell.id not in finished)
    skipped = _skipped(failed, retry_failed)
    todo = [cell for cell in cells if cell.id not in finished and cell.id not in skipped]
    needs = needs_of(todo, cells, catalog, source_models(grid, catalog, data_root))
    built = store.files.each(lambda need: store.is_whole(need.address, need.identity), needs)
    artifacts = tuple(
        PlannedArtifact(need, there, artifact_bytes(need, catalog)) for need, there in zip(needs, built, strict=True)
    )
    takes = estimate(todo, [a.need for a in artifacts if not a.built], done, catalog)
    return Plan(grid, tuple(cells), tuple(done), failed, tuple(damaged), artifacts, takes, retry_failed)


def _skipped(failed: Iterable[Failure], retry_failed: bool) -> set[str]:
    """Ids of the failures that stand: of those that were not their own fault, the same command tries again."""
    return set() if retry_failed else {failure.id for failure in failed if not failure.again}


def in_running_order(cells: Iterable[Cell]) -> list[Cell]:
    """Cells sorted so that a worker keeps its backbone, its dataset and its sources from one cell to the next.

    Within a dataset the longest come first, so that no worker is left with a long cell at the end of it.
    """

    def key(cell: Cell) -> tuple[str, str, str, int, str, str, int]:
        trains = METHODS[cell.method.name].trains_tower
        return (cell.backbone.name, cell.domain, cell.dataset.name, -int(trains) * cell.shots,
                cell.method.name, cell.id, cell.seed)  # fmt: skip

    return sorted(cells, key=key)


def source_models(grid: Grid, catalog: Catalog, data_root: Path | None) -> Callable[[Cell, SourceRef], Source]:
    """``(cell, source) -> Source``: how the sources of the grid's cells are made, each worked out once."""
    known: dict[SourceRef, Source] = {}

    def make(source: SourceRef) -> Source:
        made = grid.recipe_for(source)
        entry = catalog.backbone(made.backbone)
        # Not the cell's own backbone: under a protocol that swaps the activation, sources keep their own.
        backbone = backbone_ref(entry)
        if isinstance(made.recipe, CheckpointEntry):
            return AdoptedSource(backbone, made.dataset, made.recipe.sha256)
        dataset = dataset_ref(catalog.dataset(made.dataset), data_root)
        return SourceModel(backbone, dataset, entry.image_size, made.recipe, source.digest)

    def model(cell: Cell, source: SourceRef) -> Source:
        if source not in known:
            known[source] = make(source)
        return known[source]

    return model


def check_inputs(plan: Plan, catalog: Catalog, data_root: Path | None) -> None:
    """Raise ``UserError`` naming every dataset, backbone and checkpoint that the plan needs and that is not here."""
    backbones = {cell.backbone.name for cell in plan.todo}
    datasets = {need.dataset.name for need in plan.missing if isinstance(need, Images | SupportImages)}
    absent = [missing_weights(catalog.backbone(name)) for name in sorted(backbones)]
    absent += [missing_data(catalog.dataset(name), data_root) for name in sorted(datasets)]
    adopted = [need for need in plan.missing if isinstance(need, AdoptedSource)]
    absent += [missing_checkpoint(catalog.checkpoints[need.backbone.name, need.dataset]) for need in adopted]
    errors = [error for error in absent if error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = "\n".join(f"- {error}" for error in errors[:4])
        more = f"\n- ... and {len(errors) - 4} more" if len(errors) > 4 else ""
        raise UserError(f"{len(errors)} inputs are missing; nothing was started:\n{shown}{more}")


def count_by_kind(plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Per kind of artifact: how many there are, how many are to build, and the bytes of those."""
    every = Counter(type(a.need).__name__ for a in plan.artifacts)
    todo = Counter(type(a.need).__name__ for a in plan.artifacts if not a.built)
    size: Counter[str] = Counter()
    for planned in plan.artifacts:
        if not planned.built:
            size[type(planned.need).__name__] += planned.bytes
    return {kind: (every[kind], todo[kind], size[kind]) for kind in every}
