"""Protocols as grid files write them: a name, or a name with single switches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

from bolt.protocol import PROTOCOLS, SWITCHES, Protocol
from orchestrator.catalog.location import Location
from orchestrator.util.errors import short_repr


def resolve_protocol(value: Any, location: Location) -> Protocol:
    """The protocol that a name, or ``{name: ..., switch: value}``, describes.

    Raises ``UserError`` for an unknown protocol or switch, and for a value that a switch does not take.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        hint = "write its name, or {name: strict, switch: value}"
        raise location.error(f"{short_repr(value)} is not a protocol", hint)
    if not isinstance(value["name"], str) or value["name"] not in PROTOCOLS:
        raise location.unknown_name("protocol", value["name"], PROTOCOLS)
    switches = {str(key): item for key, item in value.items() if key != "name"}
    for switch, chosen in switches.items():
        if switch not in SWITCHES:
            raise location.unknown_name("switch", switch, SWITCHES)
        choices = _choices()[switch]
        if not any(chosen == choice and type(chosen) is type(choice) for choice in choices):
            spelled = " or ".join("true" if c is True else "false" if c is False else repr(c) for c in choices)
            raise (location / switch).error(f"{switch} is {spelled}, not {short_repr(chosen)}")
    return PROTOCOLS[value["name"]].with_switches(**switches)


@cache
def _choices() -> dict[str, tuple[Any, ...]]:
    """The values that each switch takes."""
    hints = get_type_hints(Protocol)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(Protocol)}
    return {name: (False, True) if fields[name] is bool else get_args(fields[name]) for name in SWITCHES}
