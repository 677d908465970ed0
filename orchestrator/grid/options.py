"""Options of a run: ``--set key=value`` changes a grid's fields, settings and recipe; ``--only`` selects its cells.

A key of ``--set`` is a block's field (``shots``), ``protocol.SWITCH``, ``fine_tuning.FIELD`` or ``METHOD.SETTING``. An
override applies to every block that can have the field or the setting, in included grids too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bolt.methods import METHODS
from orchestrator.catalog.location import Location
from orchestrator.catalog.yaml_files import parse_yaml
from orchestrator.core.cell import Cell, LabelOf
from orchestrator.grid.schema import Block
from orchestrator.tracks import TRACKS, stored_track
from orchestrator.util.errors import UserError, shorten, unknown_name

OPTION = Location("--set")
"""The location that error messages name for ``--set`` options. ``OPTION / key`` is the location of one key."""

_GROUPS = ("protocol", "fine_tuning")

_KEYS: dict[str, Callable[[Cell, LabelOf], str]] = {
    "track": lambda cell, label: cell.track,
    "backbone": lambda cell, label: cell.backbone.name,
    "domain": lambda cell, label: cell.domain,
    "dataset": lambda cell, label: cell.dataset.name,
    "shots": lambda cell, label: str(cell.shots),
    "k": lambda cell, label: str(cell.shots),
    "method": lambda cell, label: cell.method.name,
    "label": lambda cell, label: label(cell),
    "seed": lambda cell, label: str(cell.seed),
    "protocol": lambda cell, label: cell.protocol.name,
}
"""Key of ``--only`` -> function that returns the value of a cell under this key."""


@dataclass
class Overrides:
    """Parsed ``--set`` options.

    Attributes:
        fields: field of a block -> value.
        protocol: switch -> value.
        fine_tuning: field of the source models' recipe -> value.
        methods: method -> setting -> value.
        used: the fields that were applied to a block so far.
        notes: sentences about settings and switches that change the identities of cells, but no numbers.
        idle: method -> why its settings from ``--set`` have no effect; empty if they have an effect in any entry of
            the method.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    idle: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Iterable[str]) -> Overrides:
        """Return the options as data. Raises ``UserError`` for a malformed option or an unknown key."""
        parsed, given = cls(), dict[str, str]()
        for option in options:
            key, equals, text = option.partition("=")
            key = key.strip()
            where = f"--set {shorten(option)}"
            if not equals or not key or not text.strip():
                raise UserError("not of the form key=value", where=where, hint="for example --set shots=[1,4]")
            if given.setdefault(key, text) != text:
                raise UserError(f"{key} has two values", where=where, hint=f"give both as a list: --set {key}=[A,B]")
            if ends := re.fullmatch(r"(\d{1,9}) *(?:\.\.+|[-:]) *(\d{1,9})", text.strip()):
                first, last = sorted(map(int, ends.groups()))
                numbers = ",".join(map(str, range(first, last + 1)[:20]))
                raise UserError("a range is written as a list", where=where, hint=f"--set {key}=[{numbers}]")
            value = parse_yaml(text, where)
            if isinstance(value, str) and "," in value:
                raise UserError("a list needs brackets", where=where, hint=f"--set {key}=[{text.strip()}]")
            group, dot, name = key.partition(".")
            if not dot:
                if key not in Block.model_fields:
                    known = [*Block.model_fields, "fine_tuning.FIELD", "METHOD.SETTING"]
                    raise unknown_name("field", key, known, where=where)
                parsed.fields[key] = value
            elif group in _GROUPS:
                getattr(parsed, group)[name] = value
            elif group in METHODS:
                parsed.methods.setdefault(group, {})[name] = value
            else:
                raise unknown_name("method or field", group, [*_GROUPS, *METHODS], where=where)
        if parsed.fields.keys() >= {"datasets", "domains"}:
            raise OPTION.error("a block has either datasets or domains", "give one of them")
        return parsed

    def apply_to_block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a block with the overrides that apply to the block.

        ``shots`` changes only blocks on tracks that have a k. ``evaluate_on`` changes only blocks on tracks that can
        score other datasets than the target. ``datasets`` replaces ``domains``, and ``domains`` replaces ``datasets``.
        """
        changed = dict(block)
        track = stored_track(str(self.fields.get("track", block.get("track"))))
        for name, value in self.fields.items():
            if (name == "shots" and not track.gives_support) or (name == "evaluate_on" and not track.scores_variants):
                continue
            changed[name] = value
            self.used.add(name)
            if name in ("datasets", "domains"):
                changed.pop("domains" if name == "datasets" else "datasets", None)
        return changed

    def check_used(self, methods: Sequence[str], *, fine_tunes: bool) -> None:
        """Raise ``UserError`` if an override has no effect, or if it names a method or field that the grid lacks.

        ``fine_tunes``: whether the grid has source models that are fine-tuned here.
        """
        if self.fine_tuning and not fine_tunes:
            raise (OPTION / "fine_tuning").error("no method of this grid has fine-tuned source models")
        for method in self.methods:
            if method not in methods:
                raise (OPTION / method).unknown_name("method of this grid", method, methods)
            if why := self.idle.get(method):
                raise OPTION.error(why)
        for name in self.fields:
            if name not in self.used:
                raise (OPTION / name).error("no block of this grid takes this field")


@dataclass(frozen=True)
class FieldLocations:
    """The locations of a block's fields: a location in the file, or the option that overrides the field."""

    block: Location
    overrides: Overrides

    def __call__(self, name: str) -> Location:
        """Return the location of one field."""
        return OPTION / name if name in self.overrides.fields else self.block / name


def select_cells(
    cells: tuple[Cell, ...], options: Sequence[str], label: LabelOf, option: str = "--only "
) -> tuple[Cell, ...]:
    """Return the cells that match every key in ``options``. A cell matches if it has one of the key's values.

    A method without a support has neither k nor seed. Its cells pass every filter on the seed and, on tracks that have
    a k, every filter on k. Thus baselines stay beside the methods that they are compared with.

    Args:
        options: the filters, each ``key=value,value``.
        label: returns the label of a cell.
        option: the text before a filter on the command line; errors begin with it.

    Raises ``UserError`` for an unknown key, for a value that no cell has, or if no cell matches.
    """
    wanted: dict[str, list[str]] = {}
    for text in options:
        key, equals, listed = text.partition("=")
        key, values = key.strip(), [value.strip() for value in listed.split(",") if value.strip()]
        where = f"{option}{shorten(text)}"
        if not equals or not values:
            raise UserError("not of the form key=value,value", where=where, hint=f"for example {option}method=bolt")
        if key not in _KEYS:
            raise unknown_name("key", key, _KEYS, where=where)
        present = {_KEYS[key](cell, label) for cell in cells}
        if listed.strip() in present:  # a label or the name of a protocol may have commas
            values = [listed.strip()]
        for value in values:
            if value not in present:
                others = [other for other in _KEYS if value in {_KEYS[other](cell, label) for cell in cells}]
                is_other = bool(others) and not value.isdecimal()
                said = f"it is a {others[0]}: {option}{others[0]}={value}" if is_other else ""
                raise unknown_name(key, value, present, where=where, otherwise=said)
        wanted.setdefault("shots" if key == "k" else key, []).extend(values)

    def matches(cell: Cell, key: str) -> bool:
        without_shots = cell.shots == 0 and TRACKS[cell.track].gives_support
        if (key == "shots" and without_shots) or (key == "seed" and cell.seed == 0):
            return True
        return _KEYS[key](cell, label) in wanted[key]

    selected = tuple(cell for cell in cells if all(matches(cell, key) for key in wanted))
    if not selected:
        where = shorten(" ".join(f"{option}{text}" for text in options))
        raise UserError("no cell of the grid matches all of these", where=where)
    return selected
