"""The plan of a grid: which cells are done, which will run, and which artifacts they need."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bolt.methods import METHODS
from orchestrator.artifacts.adopted_source import AdoptedSource
from orchestrator.artifacts.required import required_artifacts
from orchestrator.artifacts.source_model import Source, SourceModel
from orchestrator.artifacts.spec import ArtifactSpec
from orchestrator.catalog import Catalog, CheckpointEntry, dataset_ref, own_splits
from orchestrator.core.cell import Cell, MethodRef, SourceRef
from orchestrator.grid import Grid
from orchestrator.planning.cell_counts import count_cells
from orchestrator.planning.cost import CostModel, cell_gflops
from orchestrator.store import Store
from orchestrator.store.results import Failure, Result, failed_for_good
from orchestrator.util.grouping import grouped
from orchestrator.util.units import human_duration, pluralize

if TYPE_CHECKING:  # races need SciPy, which takes 0.2 s to import. So only a plan with a race imports them.
    from orchestrator.analysis.raced_places import RacedPlace

LOOKS_AHEAD = 3
"""A race decides at planned moments, its looks. Artifacts are built for its next look and for this many looks after it.
So when a look is over, the race goes on without waiting for artifacts."""


@dataclass(frozen=True)
class Plan:
    """A grid compared with a store: what is finished, what has failed, what remains to do.

    Attributes:
        catalog, data_root: the catalog and the data root with which the grid was read.
        cells: every cell of the grid, in the order they will run.
        sources: the artifact behind every source model of the grid.
        retry_failed: whether cells with a recorded failure run again.
        raced: whether races choose which cells run; see ``analysis/race.py``.
        places: the race of each place, with what the finished cells have decided. A place is a track, protocol,
            backbone, domain and k.
        tried: ids of the cells that this session has run already.
        done: results of the finished cells.
        failed: recorded failures of unfinished cells.
        damaged: ids of cells whose result file could not be read and was moved aside.
        artifacts: the artifacts that the cells in ``todo`` and the next looks of a race require, inputs first.
        missing: the members of ``artifacts`` that must be built.
    """

    grid: Grid
    catalog: Catalog
    data_root: Path | None
    cells: tuple[Cell, ...]
    sources: Mapping[SourceRef, Source]
    retry_failed: bool = False
    done: tuple[Result, ...] = ()
    failed: tuple[Failure, ...] = ()
    damaged: tuple[str, ...] = ()
    artifacts: tuple[ArtifactSpec, ...] = ()
    missing: tuple[ArtifactSpec, ...] = ()
    raced: bool = False
    places: tuple[RacedPlace, ...] = ()
    tried: frozenset[str] = frozenset()

    @cached_property
    def todo(self) -> tuple[Cell, ...]:
        """The cells that will run: all open cells, or in a race the open cells that its next decisions need."""
        if not self.raced:
            return self.open
        from orchestrator.analysis.raced_places import wanted_cells

        wanted = wanted_cells(self.cells, self.places)
        return tuple(cell for cell in self.open if cell.id in wanted)

    @cached_property
    def open(self) -> tuple[Cell, ...]:
        """The unfinished cells that may run.

        Cells that this session has run already (``tried``) may not. A failed cell may run again with ``retry_failed``,
        or if it did not cause the failure itself, as with a dead worker.
        """
        ended = {result.cell.id for result in self.done} if self.retry_failed else self.ended
        return tuple(cell for cell in self.cells if cell.id not in ended and cell.id not in self.tried)

    @cached_property
    def equal_cost_groups(self) -> Collection[Sequence[Cell]]:
        """The cells to do, in groups of cells that are expected to cost the same: they differ in seed or sources only.

        Parts of cells are compared by ``id``, which takes less time: the cells of a grid share these objects.
        """

        def key(cell: Cell) -> Hashable:
            parts = cell.protocol, cell.backbone, cell.dataset, cell.evaluate_on, cell.method
            return self.grid.label(cell), cell.track, cell.shots, *map(id, parts)

        return grouped(self.todo, key).values()

    @cached_property
    def ended(self) -> frozenset[str]:
        """Ids of the cells that have a result, or a failure that the same command does not retry."""
        return failed_for_good(self.failed).union(result.cell.id for result in self.done)

    @property
    def counts(self) -> str:
        """How many cells there are, by their state, as text."""
        return count_cells(len(self.cells), len(self.done), len(self.todo), len(self.failed), self.damaged)

    @cached_property
    def left_out(self) -> tuple[Cell, ...]:
        """The cells without an outcome that the races will not need; none without a race."""
        if not self.raced:
            return ()
        from orchestrator.analysis.raced_places import left_out_cells

        run = {result.cell.id for result in self.done} | {failure.id for failure in self.failed}
        not_needed = left_out_cells(self.places) - run  # cells may have run without the race
        return tuple(cell for cell in self.cells if cell.id in not_needed)

    @property
    def race_line(self) -> str:
        """What the races have decided so far, and how many cells they save, as text; empty without a race."""
        if not self.raced:
            return ""
        places, saved = self.places, self.left_out
        out, methods = sum(len(place.decisions) for place in places), sum(len(place.methods) for place in places)
        over = sum(place.race.next is None for place in places)
        return (
            f"race: {out} of {methods} methods out, {over} of {pluralize(len(places), 'comparison')} ended; "
            f"{len(saved)} of {pluralize(len(self.cells), 'cell')}{self._weight(saved)} saved"
        )

    def _weight(self, cells: Sequence[Cell]) -> str:
        """Return, as text, which share of the grid's operations is in ``cells``, and how long one worker runs them.

        The time is the sum for those cells whose time can be predicted from finished cells.
        """
        work = [self.costs.work(cell) for cell in cells]
        of = sum(self.costs.work(cell).gflop for cell in self.cells)
        seconds = sum(self.costs.predict(each) or 0.0 for each in work)
        parts = [f"{sum(each.gflop for each in work) / of:.0%} of their operations"] if of and cells else []
        parts += [f"about {human_duration(seconds)} of one worker"] if seconds else []
        return f" ({', '.join(parts)})" if parts else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about settings and switches without an effect, and about split files other than the published ones."""
        return *self.grid.notes, *own_splits(self.grid.datasets.values(), self.data_root)

    @cached_property
    def costs(self) -> CostModel:
        """The model that predicts seconds and memory of cells from the finished ones. It learns more during a run."""
        return CostModel(lambda cell: cell_gflops(cell, self.catalog), self.done)

    @property
    def build_gflops(self) -> dict[str, float]:
        """The estimated number of operations of each artifact to build, in units of 10^9, by the artifact's address."""
        return {spec.address: spec.gflops(self.catalog) for spec in self.missing}

    def with_outcomes(self, store: Store) -> Plan:
        """Return the plan with the results and failures that the store has now; the artifacts are as before.

        The store moves damaged results aside, and reads only new results.
        """
        done, failed, damaged = store.read_outcomes([cell.id for cell in self.cells])
        return replace(self, done=tuple(done), failed=tuple(failed), damaged=tuple(damaged)).with_races(store)

    def with_races(self, store: Store) -> Plan:
        """Return the plan with its races decided from the finished cells; the plan itself if it is not raced."""
        if not self.raced:
            return self
        from orchestrator.analysis.raced_places import grid_races

        grid, ended = self.grid, failed_for_good(self.failed)
        places = grid_races(
            grid.cells, grid.label, self.done, ended, grid.metric, store.read_predictions, grid.smallest_difference
        )
        return replace(self, places=places)

    def can_decide(self, ended: Collection[str]) -> bool:
        """Return whether the race of any place can take its next decision. ``ended``: ids of cells that have ended."""
        return any(place.race.next and not place.wanted.difference(self.ended, ended) for place in self.places)

    def ready(self) -> list[Cell]:
        """Return the cells to do whose artifacts have all been built."""
        missing = frozenset(self.missing)
        return [cell for cell in self.todo if not missing or missing.isdisjoint(self.artifacts_of([cell]))]

    def artifacts_of(self, cells: Iterable[Cell]) -> tuple[ArtifactSpec, ...]:
        """Return the artifacts that cells of the plan need, inputs first."""
        return tuple(required_artifacts(cells, self.catalog, self.sources))

    def of_whole_grid(self, store: Store) -> Plan:
        """Return the plan of all cells of the file, including cells that ``--only`` leaves out, with their outcomes."""
        if (cells := self.grid.all_cells) == self.grid.cells:
            return self
        return replace(self, grid=replace(self.grid, cells=cells), cells=cells).with_outcomes(store)


def make_plan(
    grid: Grid, catalog: Catalog, store: Store, data_root: Path | None = None, *, retry_failed: bool = False
) -> Plan:
    """Compare a grid with a store. Damaged results are moved aside; nothing else changes."""
    plan = replace(results_plan(grid, catalog, store, data_root), retry_failed=retry_failed)
    return _with_artifacts(plan, store)


def results_plan(
    grid: Grid, catalog: Catalog, store: Store, data_root: Path | None = None, *, raced: bool = False
) -> Plan:
    """Return a plan for reading results: it has the outcomes of all cells, but no artifacts."""
    cells = tuple(in_running_order(grid.cells))
    sources = source_models(grid, catalog, data_root)
    return Plan(grid, catalog, data_root, cells, sources, raced=raced).with_outcomes(store)


def raced_plan(plan: Plan, store: Store) -> Plan:
    """Return ``plan`` as a race: the cells to do are only those that the race measures first.

    The artifacts are those that these cells and the next looks of the race need.
    """
    first, missing = replace(plan, raced=True).with_races(store), frozenset(plan.missing)
    specs = _artifacts_to_have(first)
    return replace(first, artifacts=specs, missing=tuple(spec for spec in specs if spec in missing))


def next_block(plan: Plan, store: Store, tried: Collection[str]) -> Plan:
    """Return the plan of the cells that a race measures next, without the cells whose ids are in ``tried``."""
    return _with_artifacts(replace(plan, tried=frozenset(tried)).with_outcomes(store), store)


def _with_artifacts(plan: Plan, store: Store) -> Plan:
    """Return the plan with two fields filled in: ``artifacts``, and ``missing`` with those that the store lacks."""
    specs = _artifacts_to_have(plan)
    built = store.files.map(lambda spec: store.is_intact(spec.address, spec.identity), specs)
    missing = tuple(spec for spec, there in zip(specs, built, strict=True) if not there)
    return replace(plan, artifacts=specs, missing=missing)


def _artifacts_to_have(plan: Plan) -> tuple[ArtifactSpec, ...]:
    """Return the artifacts that the cells to do need, in a race also for its next looks (:data:`LOOKS_AHEAD`)."""
    if not plan.todo:
        return ()
    needed = {cell.id for cell in plan.todo}.union(*(place.ahead(LOOKS_AHEAD) for place in plan.places))
    return plan.artifacts_of(cell for cell in plan.open if cell.id in needed)


def in_running_order(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells sorted by backbone, domain, dataset, method and seed, so that a worker rarely loads things again.

    All cells of a method on a dataset share the values that the method computes from the sources. All k of a seed share
    the images of the support.

    Among the methods on a dataset, those that train a tower come first. Among the cells of a seed, large k come first.
    If these long cells came last, a worker could end with one of them while the others wait.
    """

    def key(cell: Cell) -> tuple[str, str, str, bool, str, str, int, int, str]:
        trains = METHODS[cell.method.name].changes_tower
        return (cell.backbone.name, cell.domain, cell.dataset.name, not trains,
                cell.method.name, _settings_text(cell.method), cell.seed, -cell.shots, cell.id)  # fmt: skip

    return sorted(cells, key=key)


@lru_cache(maxsize=1024)
def _settings_text(method: MethodRef) -> str:
    return repr(method.settings)


def source_models(grid: Grid, catalog: Catalog, data_root: Path | None) -> dict[SourceRef, Source]:
    """Return the artifact of each source model of a grid. A model is fine-tuned here, or it is an adopted checkpoint.

    A protocol may swap the activation of a cell's backbone. The cell's source models keep the original activation.
    """
    models: dict[SourceRef, Source] = {}
    for source, made in grid.sources.items():
        if isinstance(made.recipe, CheckpointEntry):
            models[source] = AdoptedSource(made.backbone, source.dataset, made.recipe.sha256)
        else:
            dataset = dataset_ref(catalog.dataset(source.dataset), data_root)
            size = catalog.backbone(made.backbone.name).input_size
            models[source] = SourceModel(made.backbone, dataset, size, made.recipe, source.digest)
    return models
