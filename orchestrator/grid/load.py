"""Load a grid: read its file and the included files, apply overrides, expand the blocks, and select cells."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from orchestrator.analysis import CostKind
from orchestrator.analysis.rows import labels_of
from orchestrator.catalog import BackboneEntry, Catalog, CheckpointEntry, DatasetEntry
from orchestrator.catalog.location import Location, display_path, grids_folder
from orchestrator.catalog.validation import validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.expand import MOST_CELLS, expand_block
from orchestrator.grid.labels import cell_labels
from orchestrator.grid.options import OPTION, Overrides, select_cells
from orchestrator.grid.resolve import ResolvedMethod, resolve_protocol
from orchestrator.grid.schema import Block, GridFile
from orchestrator.grid.sources import GainOf, SourcePlan, SourceResolver
from orchestrator.tracks import MetricName
from orchestrator.util.errors import UserError, shorten, unknown_name
from orchestrator.util.units import listed

_NOT_GRIDS = frozenset({"prompts"})


@dataclass(frozen=True)
class Grid:
    """The cells of a grid file.

    Attributes:
        name: name of the file, without its suffix.
        given: the name or path by which a command asked for the grid.
        cells: the selected cells, each once, in the order of the file.
        all_cells: all cells of the file, before ``--only`` and ``--limit``.
        sources: every source model that the selected cells use, and how the model is made.
        datasets: the datasets whose images are read: targets, scored datasets, and the datasets of source models that
            are fine-tuned here.
        labels: cell -> the name of its method in reports: the label after ``as``, the method's name, or
            ``name[setting=value]``. If two different measurements would share a name, it gets a suffix (``labels_of``).
        smallest_difference: the smallest difference between two methods that matters, in points of the metric.
        saves: the kind of cost that is compared when the cheapest of the best methods is recommended. Methods that
            need no source models come first, whatever they cost.
        metric: the metric by which methods are compared; ``None`` for the metric of each track.
        race: whether measuring stops for a method that can no longer be the best.
        notes: sentences about settings and switches that change the identities of cells, but no numbers.
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
    saves: CostKind = "operations"
    metric: MetricName | None = None
    race: bool = False
    given: str = ""
    notes: tuple[str, ...] = ()

    def label(self, cell: Cell) -> str:
        """Return the label of a cell. Raises ``KeyError`` for a cell of another grid."""
        return self.labels[cell]

    @property
    def adopted_checkpoints(self) -> list[CheckpointEntry]:
        """The adopted checkpoints among the sources."""
        return [plan.recipe for plan in self.sources.values() if isinstance(plan.recipe, CheckpointEntry)]


def grid_names() -> tuple[str, ...]:
    """Return the names of the project's grids."""
    return tuple(sorted(path.stem for path in grids_folder().glob("*.yaml") if path.stem not in _NOT_GRIDS))


def load_grid(
    name_or_path: str | os.PathLike[str],
    catalog: Catalog,
    *,
    only: Sequence[str] = (),
    set_: Sequence[str] = (),
    limit: int | None = None,
    data_root: Path | None = None,
    gain_of: GainOf = lambda backbone, source: None,
) -> Grid:
    """Return a grid file as a :class:`Grid`.

    Args:
        name_or_path: the name of one of the project's grids, or a path that ends in ``.yaml``.
        only: ``key=value,value`` filters on the cells.
        set_: ``key=value`` overrides of block fields, method settings, the protocol and the sources' recipe.
        limit: keep only the first ``limit`` cells.
        data_root: the folder with the datasets' folders. The files of the user's own datasets are part of the datasets'
            identities.
        gain_of: returns the points that a source model gains on its own task, for ``sources: {min_gain: ...}``.

    Raises ``UserError``, with file and field, for anything wrong in the file, the filters or the overrides.
    """
    path = _find(name_or_path)
    overrides = Overrides.parse(set_)
    resolver = SourceResolver(catalog, data_root, gain_of)
    planned: dict[Cell, ResolvedMethod] = {}
    for cell, entry in _expand_file(path, overrides, resolver, ()):
        first = planned.setdefault(cell, entry)
        if len(planned) > MOST_CELLS:
            what = f"the grid has more than {MOST_CELLS:,} cells, the most that a grid may have"
            raise Location.of(path).error(what, "make several grids")
        if first.label != entry.label:
            names = " and ".join(repr(label) if label else "no label" for label in (first.label, entry.label))
            hint = f"the other entry is in {first.location}; a label after 'as' does not make a new cell"
            raise entry.location.error(f"the same cell ({cell.id}) is asked for twice, with {names}", hint)
    fine_tunes = any(isinstance(plan.recipe, SourceRecipe) for plan in resolver.plans.values())
    overrides.check_used(sorted({cell.method.name for cell in planned}), fine_tunes=fine_tunes)
    unique = labels_of(planned, cell_labels(planned).__getitem__)
    labels = {cell: unique[cell.id] for cell in planned}
    cells = select_cells(tuple(planned), only, labels.__getitem__)
    if limit is not None:
        if limit < 1:
            raise UserError(f"the limit is {limit}; at least one cell must be left", where="--limit")
        cells = cells[:limit]
    used = {(id(planned[cell]), cell.backbone.name): planned[cell] for cell in cells}
    for (_, backbone), entry in used.items():
        entry.check_backbone(catalog.backbone(backbone))
    file = _read(path)
    refs = dict.fromkeys(ref for sources in dict.fromkeys(cell.sources for cell in cells) for ref in sources)
    # A reference without a plan stands for a dataset whose images a method meta-learns from, not for a model.
    sources = {ref: resolver.plans[ref] for ref in refs if ref in resolver.plans}
    datasets = [ref.name for cell in cells for ref in cell.evaluate_on]
    datasets += [cell.dataset.name for cell in cells]
    datasets += [ref.dataset for ref in refs if ref not in sources or isinstance(sources[ref].recipe, SourceRecipe)]
    notes = *_short_trainings(sources, catalog), *_shared_images(cells, catalog), *_idle_fields(file, path)
    return Grid(
        name=path.stem,
        title=file.title,
        description=file.description,
        cells=cells,
        all_cells=tuple(planned),
        sources=sources,
        datasets={name: catalog.datasets[name] for name in dict.fromkeys(datasets)},
        backbones={name: catalog.backbones[name] for name in dict.fromkeys(cell.backbone.name for cell in cells)},
        labels=labels,
        smallest_difference=file.verdict.smallest_difference,
        saves=file.verdict.cost,
        metric=file.verdict.metric,
        race=file.race,
        given=os.fspath(name_or_path),
        notes=tuple(dict.fromkeys([*overrides.notes, *notes])),
    )


def _short_trainings(sources: Mapping[SourceRef, SourcePlan], catalog: Catalog) -> Iterator[str]:
    """Yield a note if source models are fine-tuned for fewer steps than their warm-up has."""
    recipes = {ref.dataset: plan.recipe for ref, plan in sources.items() if isinstance(plan.recipe, SourceRecipe)}
    short = [name for name, recipe in recipes.items() if recipe.is_short(catalog.datasets[name].sizes.train)]
    if short:
        steps, rate = recipes[short[0]].warmup_steps, recipes[short[0]].learning_rate
        what = f"ends within its warm-up of {steps} steps, before the learning rate reaches {rate:g}"
        yield f"note: the fine-tuning of {listed(short, 4)} {what}; set fine_tuning.warmup_steps or fine_tuning.epochs"


def _shared_images(cells: Iterable[Cell], catalog: Catalog) -> Iterator[str]:
    """Yield a note if targets share images. A verdict over datasets takes them as independent of each other."""
    targets = [catalog.datasets[name] for name in dict.fromkeys(cell.dataset.name for cell in cells)]
    pairs = [f"{one.name} and {other.name}" for one, other in combinations(targets, 2) if one.shares_images(other)]
    if pairs:
        yield f"note: {listed(pairs, 4)} share images; a verdict over datasets is surer than it should be"


def _idle_fields(file: GridFile, path: Path) -> Iterator[str]:
    """Yield a note for each file that ``file`` includes whose ``verdict`` or ``race`` ``file`` does not state."""
    for included in grid_files(path)[1:]:
        if idle := sorted(({"verdict", "race"} & _read(included).model_fields_set) - file.model_fields_set):
            yield f"note: a grid that includes {display_path(included)} does not take over its {' and '.join(idle)}"


def grid_files(name_or_path: str | os.PathLike[str]) -> list[Path]:
    """Return the file of a grid, followed by all files that it includes, directly or through other files.

    Raises ``UserError`` if one of the files does not exist or is invalid.
    """
    found: list[Path] = []
    waiting = [_find(name_or_path)]
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found.append(path)
            waiting += [_find(name, path.parent) for name in _read(path).include]
    return found


def _read(path: Path) -> GridFile:
    return validated(GridFile, read_mapping(path), Location.of(path))


def _find(name_or_path: str | os.PathLike[str], folder: Path = Path(), where: str = "GRID") -> Path:
    """Return the file of a grid, given the grid's name or a path relative to ``folder``.

    Raises ``UserError`` if there is no such grid.
    """
    text = os.fspath(name_or_path)
    if text.endswith((".yaml", ".yml")) or os.sep in text:
        path = folder / os.path.expanduser(text)
        if not os.path.isfile(path):  # Path.is_file fails for a name that the file system refuses
            hint = f"by name: {', '.join(grid_names())}"
            raise UserError(f"there is no grid file {shorten(str(path))}", where=where, hint=hint)
        return path
    if text not in grid_names():
        if os.path.isfile(file := folder / f"{text}.yaml"):
            raise UserError(f"unknown grid {text!r}", where=where, hint=f"to name the file {file}, give {text}.yaml")
        raise unknown_name("grid", text, grid_names(), where=where)
    return grids_folder() / f"{text}.yaml"


def _expand_file(
    path: Path, overrides: Overrides, resolver: SourceResolver, including: tuple[Path, ...]
) -> Iterator[tuple[Cell, ResolvedMethod]]:
    """Yield the cells of a file and of the files that it includes, each with its entry of ``methods``.

    A cell may come twice. ``including``: the chain of files that led to this file. Raises ``UserError`` for a file that
    includes itself.
    """
    location, file = Location.of(path), _read(path)
    chain = (*including, path.resolve())
    for index, name in enumerate(file.include):
        here = location / "include" / index
        included = _find(name, path.parent, str(here))
        if included.resolve() in chain:
            circle = " -> ".join(step.stem for step in (*chain, included))
            raise here.error(f"grids include each other in a circle: {circle}")
        yield from _expand_file(included, overrides, resolver, chain)
    recipe = SourceRecipe.from_mapping(file.fine_tuning, str(location / "fine_tuning"))
    if overrides.fine_tuning:
        changed = {**file.fine_tuning, **overrides.fine_tuning}
        recipe = SourceRecipe.from_mapping(changed, str(OPTION / "fine_tuning"))
    resolve_protocol(file.protocol, location / "protocol")
    shared = {"protocol": file.protocol, "precision": file.precision}
    for index, own in enumerate(file.blocks):
        here = location / "blocks" / index
        fields = own | {name: value for name, value in shared.items() if own.get(name) is None}
        block = validated(Block, fields, here)
        if overrides.fields:
            block = validated(Block, overrides.apply_to_block(fields), OPTION)
        yield from expand_block(block, here, recipe, overrides, resolver)
