"""Loading a grid: read, include, override, expand, filter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from bolt.methods import METHODS
from orchestrator.catalog import BackboneEntry, Catalog, CheckpointEntry, DatasetEntry
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.core.cell import Cell, MethodRef, SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.expand import Expander, Planned, SourcePlan, default_labels
from orchestrator.grid.filters import only as keep_only
from orchestrator.grid.overrides import Overrides
from orchestrator.grid.schema import Block, GridFile
from orchestrator.util.errors import UserError, shorten, unknown_name

_NOT_GRIDS = frozenset({"prompts"})


@dataclass(frozen=True)
class Grid:
    """A grid, expanded.

    Attributes:
        name: of the file, without its suffix.
        title, description: for people.
        cells: each measurement once, in the order of the file, of those that were asked for.
        every: the same, without what ``--only`` and ``--limit`` leave out.
        sources: every source model the cells use, and how it is made.
        datasets: what images are read of: the targets, what is scored on, and the datasets of the sources that are
            not adopted, by name.
        backbones: by name.
    """

    name: str
    title: str
    description: str
    cells: tuple[Cell, ...]
    every: tuple[Cell, ...]
    sources: Mapping[SourceRef, SourcePlan]
    datasets: Mapping[str, DatasetEntry]
    backbones: Mapping[str, BackboneEntry]
    _labels: Mapping[Cell, str]

    def label(self, cell: Cell) -> str:
        """What reports call the cell's method: its ``as`` label, its name, or ``name[setting=value]``.

        Raises ``KeyError`` for a cell of another grid.
        """
        return self._labels[cell]

    @cached_property
    def adopted(self) -> Mapping[SourceRef, CheckpointEntry]:
        """The sources that are checkpoints of others."""
        recipes = {source: plan.recipe for source, plan in self.sources.items()}
        return {source: recipe for source, recipe in recipes.items() if isinstance(recipe, CheckpointEntry)}

    def source_plan(self, source: SourceRef) -> SourcePlan:
        """How a source model is made. Raises ``KeyError`` for a source no cell uses."""
        return self.sources[source]


def grid_names() -> tuple[str, ...]:
    """The grids that come with the project."""
    return tuple(sorted(path.stem for path in grids_folder().glob("*.yaml") if path.stem not in _NOT_GRIDS))


def load_grid(
    name_or_path: str | os.PathLike[str],
    catalog: Catalog,
    *,
    only: Sequence[str] = (),
    set_: Sequence[str] = (),
    limit: int | None = None,
    data_root: Path | None = None,
) -> Grid:
    """A grid file as a :class:`Grid`.

    Args:
        name_or_path: the name of one of the project's grids, or a path that ends in ``.yaml``.
        catalog: the names the grid may use.
        only: ``key=value,value`` filters on the expanded cells.
        set_: ``key=value`` overrides of block fields, method settings, the protocol and the sources' recipe.
        limit: keep the first so many cells.
        data_root: where folder datasets are; their files are part of their identity.

    Raises:
        UserError: anything wrong in the file, the filters or the overrides, with file and field.
    """
    path = _find(name_or_path)
    overrides = Overrides.parse(set_, tuple(METHODS))
    expander = Expander(catalog, data_root, overrides)
    planned: dict[Cell, Planned] = {}
    for one in _expand_file(path, expander, ()):
        _add(planned, one)
    overrides.check_used(sorted({cell.method.name for cell in planned}))
    labels = _labels(planned)
    cells = every = tuple(planned)
    if only:
        cells = keep_only(cells, only, labels.__getitem__)
    if limit is not None:
        if limit < 1:
            raise UserError(f"the limit is {limit}; at least one cell must be left", where="--limit")
        cells = cells[:limit]
    file = _read(path)
    used = dict.fromkeys(ref for pool in dict.fromkeys(cell.sources for cell in cells) for ref in pool)
    sources = {ref: expander.sources[ref] for ref in used if ref in expander.sources}  # the others are images
    datasets = dict.fromkeys(ref.name for cell in cells for ref in cell.evaluate_on)
    datasets |= dict.fromkeys(cell.dataset.name for cell in cells)
    datasets |= dict.fromkeys(
        ref.dataset for ref in used if ref not in sources or isinstance(sources[ref].recipe, SourceRecipe)
    )
    return Grid(
        name=path.stem,
        title=file.title,
        description=file.description,
        cells=cells,
        every=every,
        sources=sources,
        datasets={name: catalog.datasets[name] for name in datasets},
        backbones={name: catalog.backbones[name] for name in dict.fromkeys(cell.backbone.name for cell in cells)},
        _labels=labels,
    )


def _read(path: Path) -> GridFile:
    return validated(GridFile, read_mapping(path), Location.of(path))


def _find(name_or_path: str | os.PathLike[str], folder: Path = Path(), where: str = "") -> Path:
    """The file of a grid's name, or of a path (relative to ``folder``). Raises ``UserError`` with the nearest name."""
    text = os.fspath(name_or_path)
    if text.endswith((".yaml", ".yml")) or os.sep in text:
        path = folder / text
        try:
            found = path.is_file()
        except OSError:  # a name that no disk takes
            found = False
        if not found:
            raise UserError(
                f"there is no grid file {shorten(str(path))}",
                where=where or "GRID",
                hint=f"by name: {', '.join(grid_names())}",
            )
        return path
    if text not in grid_names():
        raise unknown_name("grid", text, grid_names(), where=where or "GRID")
    return grids_folder() / f"{text}.yaml"


def _expand_file(path: Path, expander: Expander, chain: tuple[Path, ...]) -> Iterator[Planned]:
    """The cells of a file and of what it includes, duplicates included. Raises ``UserError`` for a cycle too."""
    location, file, overrides = Location.of(path), _read(path), expander.overrides
    chain = (*chain, path.resolve())
    for index, name in enumerate(file.include):
        at = location / "include" / index
        included = _find(name, path.parent, str(at))
        if included.resolve() in chain:
            circle = " -> ".join(step.stem for step in (*chain, included))
            raise UserError(f"grids include each other in a circle: {circle}", where=str(at))
        yield from _expand_file(included, expander, chain)
    recipe = SourceRecipe.from_mapping(file.fine_tuning, str(location / "fine_tuning"))
    if overrides.fine_tuning:
        changed = {**file.fine_tuning, **overrides.fine_tuning}
        recipe = SourceRecipe.from_mapping(changed, str(overrides.option("fine_tuning")))
    for index, fields in enumerate(file.blocks):
        at = location / "blocks" / index
        block = validated(Block, fields, at)
        if overrides.fields:
            block = validated(Block, overrides.on_block(fields), overrides.option())
        yield from expander.cells(block, file.protocol, recipe, at)


def _add(planned: dict[Cell, Planned], one: Planned) -> None:
    """Keep a cell once. Raises ``UserError`` when it is asked for under two labels."""
    first = planned.setdefault(one.cell, one)
    if first.label != one.label:
        names = " and ".join(repr(label) if label else "no label" for label in (first.label, one.label))
        raise UserError(
            f"the same cell ({one.cell.id}) is asked for twice, with {names}",
            where=str(one.location),
            hint=f"it stands in {first.location} too; 'as' names a cell, it does not make a new one",
        )


def _labels(planned: Mapping[Cell, Planned]) -> dict[Cell, str]:
    """Every cell's label. Raises ``UserError`` when a label means two methods where both would be in one table row."""
    defaults = default_labels(planned)
    labels: dict[Cell, str] = {}
    meanings: dict[str, set[MethodRef]] = {}
    for cell, one in planned.items():
        labels[cell] = defaults[cell.track, cell.method] if one.label is None else one.label
        meanings.setdefault(labels[cell], set()).add(cell.method)
    rows: dict[Cell, Planned] = {}
    for cell, label in labels.items():
        if len(meanings[label]) > 1:
            row = replace(cell, method=MethodRef(label, 0, ()))
            other = rows.setdefault(row, planned[cell])
            if other.cell != cell:
                raise UserError(
                    f"the label {label!r} means two different cells of one row",
                    where=str(planned[cell].location),
                    hint=f"the other one stands in {other.location}",
                )
    return labels
