"""What a grid file may say: its fields and blocks, frozen and checked, before any name in them is looked up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from bolt.protocol import PROTOCOLS, SWITCHES, Protocol
from orchestrator.catalog.fields import printable
from orchestrator.catalog.location import Location
from orchestrator.util.errors import UserError, short_repr, shorten, unknown_name


def _listed(value: Any) -> Any:
    """A single value where a list is meant."""
    return value if isinstance(value, list | tuple) else (value,)


Names = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
Numbers = Annotated[tuple[StrictInt, ...], BeforeValidator(_listed), Field(min_length=1)]


class Part(BaseModel):
    """What all parts of a grid file share: no unknown field, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SourcesChoice(Part):
    """Which models a method may build on.

    Attributes:
        rule: ``leave_one_out`` leaves out the target (and what is evaluated on); ``leave_group_out`` their kin too.
        domain: the domain that gives the pool; the target's own by default.
        datasets: the pool by name, instead of a domain.
        count: a random subset of so many of them, drawn by (target, seed) alone; fewer are part of more.
        adopted: whether a dataset's adopted checkpoint, where the catalog has one, stands in for a fine-tuned model.
    """

    rule: Literal["leave_one_out", "leave_group_out"] = "leave_one_out"
    domain: str | None = None
    datasets: Names | None = None
    count: Annotated[StrictInt, Field(ge=1)] | None = None
    adopted: StrictBool = True

    @model_validator(mode="before")
    @classmethod
    def _rule_alone(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_pool(self) -> SourcesChoice:
        if self.domain is not None and self.datasets is not None:
            raise ValueError("the pool is either a domain or a list of datasets, not both")
        return self


class MethodChoice(Part):
    """One entry of ``methods``: a name, its settings, and a label for reports (``as``)."""

    name: str
    settings: dict[str, Any] = {}
    label: Annotated[str, Field(min_length=1), AfterValidator(printable)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _compact(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ValueError(
                f"{short_repr(value)} is not one method: write 'name' or 'name: {{setting: value}}', "
                "one method per entry"
            )
        ((name, settings),) = value.items()
        settings = {} if settings is None else settings
        if not isinstance(settings, Mapping):
            whose = shorten(str(name))
            raise ValueError(
                f"the settings of {whose} are {short_repr(settings)}; write them as {whose}: {{setting: value}}"
            )
        own = {str(key): item for key, item in settings.items() if key != "as"}
        return {"name": str(name), "settings": own, "label": settings.get("as")}


class Block(Part):
    """One product of a grid."""

    track: str
    backbones: Names
    domains: Names | None = None
    datasets: Names | None = None
    sources: SourcesChoice = SourcesChoice()
    evaluate_on: Names | None = None
    shots: Numbers | None = None
    seeds: Numbers | None = None
    methods: Annotated[tuple[MethodChoice, ...], BeforeValidator(_listed), Field(min_length=1)]
    protocol: Any = None


class GridFile(Part):
    """A whole grid file; its blocks are checked one by one, so that messages can name them."""

    title: str
    description: str = ""
    include: Names = ()
    protocol: Any = "strict"
    fine_tuning: dict[str, Any] = {}
    blocks: tuple[dict[str, Any], ...] = ()

    @model_validator(mode="after")
    def _something(self) -> GridFile:
        if not self.blocks and not self.include:
            raise ValueError("the grid is empty: it needs blocks, or other grids to include")
        return self


def resolve_protocol(value: Any, location: Location) -> Protocol:
    """A protocol from its name, or from ``{name: ..., switch: value}``.

    Raises ``UserError`` for an unknown protocol or switch (with the nearest one) or a value a switch does not take.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise UserError(
            f"{short_repr(value)} is not a protocol",
            where=str(location),
            hint="write its name, or {name: strict, switch: value}",
        )
    if not isinstance(value["name"], str) or value["name"] not in PROTOCOLS:
        raise unknown_name("protocol", value["name"], PROTOCOLS, where=str(location))
    switches = {str(key): item for key, item in value.items() if key != "name"}
    for switch, chosen in switches.items():
        if switch not in SWITCHES:
            raise unknown_name("switch", switch, SWITCHES, where=str(location))
        choices = _choices()[switch]
        if not any(chosen == choice and type(chosen) is type(choice) for choice in choices):
            spelled = " or ".join("true" if c is True else "false" if c is False else repr(c) for c in choices)
            raise UserError(f"{switch} is {spelled}, not {short_repr(chosen)}", where=str(location / switch))
    return PROTOCOLS[value["name"]].with_switches(**switches)


@cache
def _choices() -> dict[str, tuple[Any, ...]]:
    """Per switch, the values it takes."""
    hints = get_type_hints(Protocol)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(Protocol)}
    return {name: (False, True) if fields[name] is bool else get_args(fields[name]) for name in SWITCHES}
