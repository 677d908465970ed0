"""``--set key=value``: other values for a grid's fields, settings and recipe, for one run.

Keys are a block's field (``shots``), ``protocol.SWITCH``, ``fine_tuning.FIELD`` or ``METHOD.SETTING``. An override
applies to every block that the key makes sense for, those of included grids too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bolt.methods import METHODS
from orchestrator.catalog.location import Location
from orchestrator.catalog.yaml_files import parse_yaml
from orchestrator.grid.schema import Block
from orchestrator.tracks import stored_track
from orchestrator.util.errors import UserError, shorten, unknown_name

OPTION = Location("--set")
"""Where overrides stand, for messages: the key of one is ``OPTION / key``."""

_GROUPS = ("protocol", "fine_tuning")


@dataclass
class Overrides:
    """Parsed ``--set`` options: values by block field, switch, field of the recipe, and method and setting.

    ``used`` are the block fields that were applied to some block so far.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, options: Iterable[str]) -> Overrides:
        """The options as data. Raises ``UserError`` for a malformed option or an unknown key."""
        parsed = cls()
        for option in options:
            key, equals, text = option.partition("=")
            key = key.strip()
            where = f"--set {shorten(option)}"
            if not equals or not key:
                raise UserError("not of the form key=value", where=where, hint="for example --set shots=[1,4]")
            value = parse_yaml(text, where)
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
        return parsed

    def apply_to_block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a block with the overrides that fit it.

        ``shots`` changes only blocks on tracks that have a k, ``evaluate_on`` only those on tracks that score variants.
        ``datasets`` replaces ``domains``, and the other way round.
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

    def check_used(self, methods: Sequence[str]) -> None:
        """Raises ``UserError`` for an override of a method or field that the grid does not have."""
        for method in self.methods:
            if method not in methods:
                raise (OPTION / method).unknown_name("method of this grid", method, methods)
        for name in self.fields:
            if name not in self.used:
                raise (OPTION / name).error("no block of this grid takes this field")


@dataclass(frozen=True)
class FieldLocations:
    """Where the fields of a block stand: ``at("shots")`` is the place in the file, or the option that overrides it."""

    block: Location
    overrides: Overrides

    def __call__(self, name: str) -> Location:
        """The location of one field."""
        return OPTION / name if name in self.overrides.fields else self.block / name
