"""The labels of cells. A label is the name of a cell's method in reports, and tells the method's settings apart."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.core.cell import Cell, MethodRef
from orchestrator.grid.resolve import ResolvedMethod
from orchestrator.util.grouping import grouped


def cell_labels(planned: Mapping[Cell, ResolvedMethod]) -> dict[Cell, str]:
    """Return the label of every cell: the label in the grid, or the method's name with the settings that vary.

    ``planned``: cell -> the entry of ``methods`` that the cell belongs to.

    Raises ``UserError`` if cells with different methods or number formats have the same label and would share a row of
    a table.
    """
    # The cells of an entry on one backbone have the same track, method, number format and label.
    some = {(id(entry), id(cell.backbone)): (cell, entry) for cell, entry in planned.items()}
    shown = {key: _with_precision(cell.method, cell.backbone.precision) for key, (cell, _) in some.items()}
    unnamed = grouped((key for key, (_, entry) in some.items() if entry.label is None), lambda key: some[key][0].track)
    defaults = {track: method_labels([shown[key] for key in keys]) for track, keys in unnamed.items()}
    label_of: dict[tuple[int, int], str] = {}
    methods: dict[str, set[MethodRef]] = defaultdict(set)
    for key, (cell, entry) in some.items():
        label_of[key] = defaults[cell.track][shown[key]] if entry.label is None else entry.label
        methods[label_of[key]].add(shown[key])
    labels = {cell: label_of[id(entry), id(cell.backbone)] for cell, entry in planned.items()}
    rows: dict[tuple[Any, ...], Cell] = {}
    for cell, label in labels.items():
        if len(methods[label]) > 1:
            other = rows.setdefault(_row(cell, label), cell)
            if other != cell:
                what = f"two different cells would have the label {label!r} in the same row of a table"
                raise planned[cell].location.error(what, f"the other cell is in {planned[other].location}")
    return labels


def _row(cell: Cell, label: str) -> tuple[Any, ...]:
    """Return a key that is equal for cells in the same row of a table.

    The key has neither the method, nor the number format of the towers, nor the training of the source models. So cells
    that differ only in these share a row unless their labels differ.
    """
    return (
        label, cell.track, cell.protocol, cell.backbone.name, cell.backbone.digest, cell.domain, cell.dataset,
        cell.evaluate_on, cell.sources_rule, tuple(source.dataset for source in cell.sources), cell.shots, cell.seed,
    )  # fmt: skip


def _with_precision(method: MethodRef, precision: str | None) -> MethodRef:
    """Return a method with the number format of the towers as a setting, so that labels can show the format."""
    settings = {**method.settings_dict(), "precision": precision or "default"}
    return replace(method, settings=tuple(settings.items()))


def method_labels(methods: Iterable[MethodRef]) -> dict[MethodRef, str]:
    """Return the label of each method.

    The label is the method's name or, with several methods of that name, ``name[setting=value]`` with the settings in
    which they differ.
    """
    variants: dict[str, dict[MethodRef, dict[str, Any]]] = defaultdict(dict)
    for method in methods:
        variants[method.name][method] = method.settings_dict()
    labels = {}
    for name, settings_of in variants.items():
        some = next(iter(settings_of.values()))
        varying = [key for key in some if len({repr(settings.get(key)) for settings in settings_of.values()}) > 1]
        for ref, settings in settings_of.items():
            values = ",".join(f"{key}={_short(settings[key])}" for key in varying)
            labels[ref] = f"{name}[{values}]" if values else name
    return labels


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
