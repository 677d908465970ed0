"""Reading YAML for people: safe, with the place in the file in every message.

Four things differ from ``yaml.safe_load``: a key given twice is an error instead of the last one winning, ``1e-3``
is a number (YAML 1.1 wants ``1.0e-3``), syntax errors become :class:`UserError` with line and column, and a text that
is nested without end, or grows without end by its aliases, is refused before anything is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from orchestrator.util.errors import UserError, short_repr, shorten, unknown_name

Model = TypeVar("Model", bound=BaseModel)

DEEPEST = 50
"""Levels a file may be nested. libyaml's reader calls itself once a level, and ends the process when it runs out."""

MOST_VALUES = 1_000_000
"""Values a file may hold, with each alias counted as often as it stands for something."""


@cache
def grids_folder() -> Path:
    """The folder of grids, catalog and published numbers: packaged with a wheel, or the repository's ``grids/``.

    Raises ``UserError`` when neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_grids", package.parent / "grids"):
        if (folder / "datasets").is_dir():
            return folder
    raise UserError(
        "the folder of grids and catalog files is missing",
        where=str(package.parent / "grids"),
        hint="reinstall the project, or run it from a complete checkout",
    )


def shown(path: Path) -> str:
    """A file's name in messages: ``grids/...`` for the project's own, the path as given for others."""
    try:
        return f"grids/{path.resolve().relative_to(grids_folder()).as_posix()}"
    except (ValueError, OSError):  # not one of the project's, or no name that a disk takes
        return shorten(str(path))


@dataclass(frozen=True)
class Place:
    """Where something stands: a file (or an option), and the path of keys inside it."""

    file: str
    path: str = ""

    def __truediv__(self, key: str | int) -> Place:
        """One level further in."""
        if isinstance(key, int):
            return Place(self.file, f"{self.path}[{key}]")
        return Place(self.file, f"{self.path}.{key}" if self.path else key)

    def __str__(self) -> str:
        return f"{self.file}: {shorten(self.path)}" if self.path else self.file


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, with unique keys and the floats of YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # `!!map [1]` is left to the loader
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_whole(self, node: yaml.Node) -> int:
        """An integer of 64 bits; Python refuses to print longer ones than 4,300 digits, which 0x can spell."""
        number: int = self.construct_yaml_int(node)
        if abs(number) >= 2**63:
            raise yaml.constructor.ConstructorError(None, None, "a number beyond 64 bits", node.start_mark)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, where: str) -> Any:
    """The plain data in ``text``. Raises ``UserError``, with line and column, for what is not safe YAML."""
    try:
        _survey(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark and "\n" in text else where
        hint = ""
        if "could not determine a constructor" in (error.problem or ""):
            hint = "these files hold plain data only: tags that build objects are refused"
        elif mark and "{}" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            hint = "inside [...] a text with {} stands in quotes"
        raise UserError(f"not valid YAML: {error.problem or error.context}", where=place, hint=hint) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last two of tags such as !!int ''
        raise UserError(f"not valid YAML: {error}", where=where) from None


def _survey(text: str) -> None:
    """Raise ``yaml.YAMLError`` for a text that is nested too deeply, holds itself, or is too large once written out."""
    sizes: dict[str, int] = {}  # anchor -> values under it
    open_: list[tuple[str | None, int]] = []  # of each collection around this place: its anchor, its values so far
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if event.anchor is not None:
                sizes[event.anchor] = 0  # until it is closed
            if len(open_) > DEEPEST:
                raise _refused(event, f"more than {DEEPEST} levels of nesting")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor or "", 1)
            if not size:
                raise _refused(event, f"{event.anchor!r} holds itself")
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        if open_:
            size += open_[-1][1]
            open_[-1] = (open_[-1][0], size)
        if size > MOST_VALUES:
            raise _refused(event, f"more than {MOST_VALUES} values, most of them by aliases")


def _refused(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def read_yaml(path: Path) -> Any:
    """The plain data in a file. Raises ``UserError`` when it cannot be read or is not safe YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot be read: {why}", where=shown(path)) from None
    return parse_yaml(text, shown(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """A file whose top level is a mapping with text keys. Raises ``UserError`` otherwise."""
    return as_mapping(read_yaml(path), Place(shown(path)))


def as_mapping(value: Any, place: Place) -> dict[str, Any]:
    """``value`` if it is a mapping with text keys. Raises ``UserError`` otherwise."""
    if not isinstance(value, dict):
        raise UserError(f"needs fields (name: value), not {short_repr(value)}", where=str(place))
    for key in value:
        if not isinstance(key, str):
            raise UserError(f"the name {short_repr(key)} is not text; write it in quotes", where=str(place))
    return value


def validated(model: type[Model], data: Any, place: Place) -> Model:
    """``data`` as a ``model``.

    Raises ``UserError`` naming file and field; an unknown field comes with the nearest one that exists.
    """
    data = as_mapping(data, place)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
        raise _as_user_error(problem, model, place) from None


def _as_user_error(problem: Mapping[str, Any], model: type[BaseModel], place: Place) -> UserError:
    """One of pydantic's problems, in the words of this project."""
    candidates: list[type[BaseModel]] = [model]
    outer = candidates
    for key in problem["loc"]:
        outer = candidates
        if isinstance(key, int):
            place = place / key
            continue
        tagged = [c for c in candidates if key in _kinds(c)]
        if tagged:
            candidates = tagged
            continue
        place = place / key
        annotations = [c.model_fields[key].annotation for c in candidates if key in c.model_fields]
        candidates = [inner for annotation in annotations for inner in _models(annotation)]
    if problem["type"] == "extra_forbidden":
        parent, _, name = place.path.rpartition(".")
        known = {field for owner in outer for field in owner.model_fields}
        return unknown_name("field", name, known, where=str(Place(place.file, parent)))
    if problem["type"] == "missing":
        return UserError("this field is needed", where=str(place))
    if problem["type"] == "value_error":
        return UserError(str(problem["ctx"]["error"]), where=str(place))
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = sorted(kind for c in candidates for kind in _kinds(c))
        place = place / "kind"
        if problem["type"] == "union_tag_not_found":
            return UserError("this field is needed", where=str(place), hint=f"one of: {', '.join(kinds)}")
        return unknown_name("kind", problem["ctx"]["tag"], kinds, where=str(place))
    if problem["type"] == "literal_error":
        return _unknown_choice(problem, outer, place)
    return UserError(
        f"{short_repr(problem['input'])}: {problem['msg'][:1].lower()}{problem['msg'][1:]}", where=str(place)
    )


def _unknown_choice(problem: Mapping[str, Any], owners: list[type[BaseModel]], place: Place) -> UserError:
    name = next((key for key in reversed(problem["loc"]) if isinstance(key, str)), "value")
    annotations = [c.model_fields[name].annotation for c in owners if name in c.model_fields]
    return unknown_name(name, problem["input"], {str(v) for a in annotations for v in _literals(a)}, where=str(place))


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for inner in get_args(annotation) for value in _literals(inner)]


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of a model's ``kind`` field, by which unions tell their members apart."""
    field = model.model_fields.get("kind")
    return tuple(_literals(field.annotation)) if field else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation may hold, through unions, tuples and annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, dict):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return []
