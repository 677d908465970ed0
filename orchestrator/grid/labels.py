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

    Raises ``UserError`` if different cells have the same label and would share a row of a table, or if two methods have
    the same label.
    """
    # The cells of an entry on one backbone have the same track, method, number format and label.
    some = {(id(entry), id(cell.backbone)): (cell, entry) for cell, entry in planned.items()}
    shown = {key: _with_precision(cell.method, cell.backbone.precision) for key, (cell, _) in some.items()}
    unnamed = grouped((key for key, (_, entry) in some.items() if entry.label is None), lambda key: some[key][0].track)
    defaults = {track: method_labels([shown[key] for key in keys]) for track, keys in unnamed.items()}
    label_of = {key: entry.label or defaults[cell.track][shown[key]] for key, (cell, entry) in some.items()}
    first: dict[str, ResolvedMethod] = {}
    for key, (_, entry) in some.items():
        same = first.setdefault(label_of[key], entry)
        if same.method.name != entry.method.name:
            what = f"{label_of[key]!r} is the label of two methods, {same.method.name} and {entry.method.name}"
            raise entry.location.error(what, f"the other one is in {same.location}")
    labels = {cell: label_of[id(entry), id(cell.backbone)] for cell, entry in planned.items()}
    rows: dict[tuple[Any, ...], Cell] = {}
    for cell, label in labels.items():
        # The key has no sources and no scored datasets: no table tells cells apart by them.
        row = (label, *cell.place, cell.dataset.name, cell.sources_rule, cell.shots, cell.seed)
        if (other := rows.setdefault(row, cell)) != cell:
            what = f"two different cells would have the label {label!r} in the same row of a table"
            hint = f"the other cell is in {planned[other].location}; write 'as: LABEL' in one of the two entries"
            raise planned[cell].location.error(what, hint)
    return labels


def _with_precision(method: MethodRef, precision: str | None) -> MethodRef:
    """Return a method with the number format of the towers as a setting, so that labels can show the format."""
    settings = {**method.settings_dict(), "precision": precision or "default"}
    return replace(method, settings=tuple(settings.items()))


def method_labels(methods: Iterable[MethodRef]) -> dict[MethodRef, str]:
    """Return the label of each method.

    The label is the method's name or, with several methods of that name, ``name[setting=value]`` with the settings in
    which they differ. A method of an earlier version may lack a setting.
    """
    variants: dict[str, dict[MethodRef, dict[str, Any]]] = defaultdict(dict)
    for method in methods:
        variants[method.name][method] = method.settings_dict()
    labels = {}
    for name, settings_of in variants.items():
        every = dict.fromkeys(key for settings in settings_of.values() for key in settings)
        varying = [key for key in every if len({repr(settings.get(key)) for settings in settings_of.values()}) > 1]
        for ref, settings in settings_of.items():
            values = ",".join(f"{key}={_short(settings[key])}" for key in varying if key in settings)
            labels[ref] = f"{name}[{values}]" if values else name
    return labels


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
