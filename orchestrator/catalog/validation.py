"""Checking the plain data of a file against a pydantic model, with messages that name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orchestrator.catalog.location import Location
from orchestrator.util.errors import UserError, short_repr

Model = TypeVar("Model", bound=BaseModel)


def as_mapping(value: Any, location: Location) -> dict[str, Any]:
    """``value`` if it is a mapping with text keys. Raises ``UserError`` otherwise."""
    if not isinstance(value, dict):
        raise location.error(f"needs fields (name: value), not {short_repr(value)}")
    for key in value:
        if not isinstance(key, str):
            raise location.error(f"the name {short_repr(key)} is not text; write it in quotes")
    return value


def validated(model: type[Model], data: Any, location: Location) -> Model:
    """``data`` as an instance of ``model``. Raises ``UserError`` that names the file and the field."""
    data = as_mapping(data, location)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
        raise _as_user_error(problem, model, location) from None


def _as_user_error(problem: Mapping[str, Any], model: type[BaseModel], location: Location) -> UserError:
    """The error for one of pydantic's problems.

    Walks the problem's path through the models, to find its location in the file and the names that would be right.
    """
    candidates: list[type[BaseModel]] = [model]
    outer = candidates
    for key in problem["loc"]:
        outer = candidates
        if isinstance(key, int):
            location = location / key
            continue
        tagged = [c for c in candidates if key in _kinds(c)] if len(candidates) > 1 else []
        if tagged:  # the key is no field: it says which member of a union was read
            candidates = tagged
            continue
        location = location / key
        annotations = [c.model_fields[key].annotation for c in candidates if key in c.model_fields]
        candidates = [inner for annotation in annotations for inner in _models(annotation)]
    if problem["type"] == "extra_forbidden":
        parent, _, name = location.path.rpartition(".")
        known = {field for owner in outer for field in owner.model_fields}
        return Location(location.file, parent).unknown_name("field", name, known)
    if problem["type"] == "missing":
        return location.error("this field is needed")
    if problem["type"] == "value_error":
        return location.error(str(problem["ctx"]["error"]))
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = sorted(kind for c in candidates for kind in _kinds(c))
        location = location / "kind"
        if problem["type"] == "union_tag_not_found":
            return location.error("this field is needed", f"one of: {', '.join(kinds)}")
        return location.unknown_name("kind", problem["ctx"]["tag"], kinds)
    if problem["type"] == "literal_error":
        return _unknown_choice(problem, outer, location)
    message: str = problem["msg"]
    return location.error(f"{short_repr(problem['input'])}: {message[:1].lower()}{message[1:]}")


def _unknown_choice(problem: Mapping[str, Any], owners: list[type[BaseModel]], location: Location) -> UserError:
    name = next((key for key in reversed(problem["loc"]) if isinstance(key, str)), "value")
    annotations = [c.model_fields[name].annotation for c in owners if name in c.model_fields]
    choices = {str(value) for annotation in annotations for value in _literals(annotation)}
    return location.unknown_name(name, problem["input"], choices)


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for inner in get_args(annotation) for value in _literals(inner)]


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of a model's ``kind`` field, which selects a member of a union."""
    field = model.model_fields.get("kind")
    return tuple(_literals(field.annotation)) if field else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models inside a type annotation: itself, or those of a union, tuple or dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, dict):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return []
