"""The page of all fields of grid files and catalog files, made from the classes that check these files."""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from bolt.protocol import PUBLISHED, Protocol
from orchestrator.catalog.backbone_entry import BackboneEntry, CheckpointEntry
from orchestrator.catalog.dataset_entry import DatasetEntry, DomainEntry
from orchestrator.catalog.routes import Route
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.schema import Block, GridFile, MethodChoice, SourcesChoice, VerdictChoice

HEADER = """# Fields of grid files and catalog files

[Grids](grids.md) explains these files by an example. An unknown field is an error that names the nearest field.
"""


def _routes() -> dict[str, type[BaseModel]]:
    """Kind -> the fields of a dataset's route of that kind."""
    models = get_args(get_args(Route)[0])
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in models}


SECTIONS: tuple[tuple[str, type], ...] = (
    ("A grid file", GridFile),
    ("A block", Block),
    ("`sources`: the models a method may use", SourcesChoice),
    ("`methods`: one entry", MethodChoice),
    ("`fine_tuning`: how source models are made", SourceRecipe),
    ("`verdict`: how methods are compared", VerdictChoice),
    ("`protocol`: the switches", Protocol),
    ("`datasets`: one entry of a catalog file", DatasetEntry),
    *((f"`route: {{kind: {kind}}}`", model) for kind, model in _routes().items()),
    ("`domains`: one entry of a catalog file", DomainEntry),
    ("`backbones`: one entry of a catalog file", BackboneEntry),
    ("`checkpoints`: one entry of a catalog file", CheckpointEntry),
)


KEYS: dict[type, tuple[str, ...]] = {
    DatasetEntry: ("name",),
    DomainEntry: ("name",),
    BackboneEntry: ("name",),
    CheckpointEntry: ("backbone", "dataset"),
    **dict.fromkeys(_routes().values(), ("kind",)),
}
"""Fields that a file gives in another way: as the key of the entry, or in the section's title."""


def page() -> str:
    """Return the page as Markdown."""
    return HEADER + "\n" + "\n".join(_section(title, model) for title, model in SECTIONS)


def _section(title: str, model: type) -> str:
    meanings = _attributes(model)
    switches = model is Protocol
    published = " in `published` |" if switches else ""
    head = f"| field | values | default |{published} meaning |"
    lines = [f"## {title}", "", _summary(model), "", head, "|---" * (head.count("|") - 1) + "|"]
    for name, values, default in _fields(model):
        if name in KEYS.get(model, ()):
            continue
        cells = [f"`{name}`", values, default]
        if switches:
            cells.append(f"`{str(getattr(PUBLISHED, name)).lower()}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, meanings.get(name, "")]) + " |")
    return "\n".join([*lines, ""])


def _fields(model: type) -> list[tuple[str, str, str]]:
    """Name, possible values and default of every field, as Markdown."""
    if is_dataclass(model):
        hints = inspect.get_annotations(model, eval_str=True)
        plain = [(field.name, hints[field.name], field.default) for field in fields(model)]
        return [(name, _values(hint), _default(value, value is MISSING)) for name, hint, value in plain]
    assert issubclass(model, BaseModel)
    return [
        (name, _values(field.annotation), _default(field.default, field.default is PydanticUndefined))
        for name, field in model.model_fields.items()
    ]


def _values(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is type(None):
        return "nothing"
    if hint is Any:
        return "see the meaning"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if hasattr(hint, "__metadata__"):
        return _values(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_values(part) for part in parts if part is not type(None)))
    if origin is tuple or origin is list:
        return f"a list of {_values(parts[0])}" if parts else "a list"
    if origin is not None:
        return "a mapping"
    names = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", dict: "a mapping"}
    return names.get(hint, "a mapping")


def _default(value: Any, required: bool) -> str:
    if required:
        return "required"
    if isinstance(value, BaseModel) or value is None or value in ((), {}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _summary(model: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return _plain(inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")


def _attributes(model: type) -> dict[str, str]:
    """Field -> meaning, from the parts "Attributes:" of the docstrings of a class and its base classes."""
    text = "\n".join((inspect.getdoc(base) or "").partition("Attributes:\n")[2] for base in model.__mro__)
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: _plain(" ".join(meaning.split())) for names, meaning in entries for name in names.split(", ")}


def _plain(text: str) -> str:
    """Return a docstring's text as Markdown."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
