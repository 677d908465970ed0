"""Validation of catalog and grid files: types of fields, a base class, and errors that name file and field."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from bolt.class_words import check_placeholders
from orchestrator.catalog.location import Location
from orchestrator.util.errors import UserError, short_repr

OPEN_CLIP = "open_clip."
"""Prefix of the name of a list in open_clip. Entries use such lists, for example the 1,000 class names of ImageNet."""


def key_problem(key: Any) -> str | None:
    """Return what is wrong with the key of an entry, which becomes part of file names; ``None`` for a valid key."""
    if not isinstance(key, str):
        return f"the name {short_repr(key)} is not text; write it in quotes"
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", key):
        return None
    problem = f"the name {short_repr(key)} may hold lower-case letters, digits, '_', '-' and '.' only"
    return f"{problem}, as in {short_repr(similar)}" if (similar := as_key(key)) else problem


def as_key(text: str) -> str:
    """Return a valid key made from a text without its accents; empty if no character of it may be in a key."""
    letters = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9_.-]+", "-", letters.lower()).strip("-._")


def _check_key(key: Any) -> Any:
    if problem := key_problem(key):
        raise ValueError(problem)
    return key


def printable(text: str) -> str:
    """Return the text unchanged, if it may be printed in a table.

    Raises ``ValueError`` for a text that a spreadsheet would run or that has characters which control a terminal.
    """
    if text[:1] in ("=", "+", "-", "@"):
        raise ValueError(f"{text[:80]!r} begins like a formula, and a spreadsheet that opens a table would run it")
    if not text.isprintable():
        raise ValueError(f"{text[:80]!r} holds characters that do not print")
    return text


def check_templates(value: Any, of_class: str | None = None) -> Any:
    """Return ``value`` unchanged if it is a list of prompt templates or, given ``of_class``, a list of sentences.

    A template has one ``{}`` for the class name. A sentence is for the class ``of_class`` alone and needs no ``{}``.

    Raises ``ValueError`` for an empty list, an empty sentence, a template without exactly one ``{}``, and ``{name}``.
    """
    if not isinstance(value, list | tuple) or not value:
        wanted = "neither a list of templates nor the name of a set" if of_class is None else "no list of sentences"
        raise ValueError(f"{short_repr(value)} is {wanted}" + (f" for {of_class!r}" if of_class is not None else ""))
    for template in value:
        fields = template.count("{}") if isinstance(template, str) else 0
        if of_class is None and fields != 1:
            count = "more than one" if fields else "no"
            raise ValueError(f"the template {short_repr(template)} has {count} {{}} for the class name")
        if not isinstance(template, str) or not template.strip():
            raise ValueError(f"the sentence {short_repr(template)} for {of_class!r} is not text")
    check_placeholders([*value])
    return value


Key = Annotated[str, BeforeValidator(_check_key)]
Title = Annotated[str, AfterValidator(printable)]
Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True)] | str
PositiveNumber = Annotated[float, Field(strict=True, gt=0)]
PositiveInt = Annotated[StrictInt, Field(ge=1)]
NonNegativeInt = Annotated[StrictInt, Field(ge=0)]


class StrictModel(BaseModel):
    """Base class of everything that is read from catalog and grid files: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        for name in value if isinstance(value, Mapping) else ():
            if name not in cls.model_fields:
                raise PydanticCustomError("unknown_field", "", {"name": name, "known": list(cls.model_fields)})
        return value


Model = TypeVar("Model", bound=StrictModel)


def as_mapping(value: Any, location: Location) -> dict[str, Any]:
    """Return ``value`` if it is a mapping with text keys. Raises ``UserError`` otherwise."""
    if not isinstance(value, dict):
        raise location.error(f"needs fields (name: value), not {short_repr(value)}")
    for key in value:
        if not isinstance(key, str):
            raise location.error(f"the name {short_repr(key)} is not text; write it in quotes")
    return value


def validated(model: type[Model], data: Any, location: Location) -> Model:
    """Return ``data`` as an instance of ``model``. Raises ``UserError`` that names the file and the field."""
    try:
        return model.model_validate(as_mapping(data, location))
    except ValidationError as error:
        raise _as_user_error(error.errors(include_url=False)[0], data, location) from None


def _as_user_error(problem: ErrorDetails, data: Any, location: Location) -> UserError:
    """Return the error for a problem that pydantic found in ``data``, which is the content at ``location``."""
    kind, context, path = problem["type"], problem.get("ctx", {}), problem["loc"]
    for key in path[:-2] if path[-1:] == ("[key]",) else path:
        if isinstance(data, dict) and data.get("kind") == key:
            data = None  # not a key of the file: pydantic adds the kind of a route
            continue
        location /= key
        data = data.get(key) if isinstance(data, dict) else None
    if kind == "unknown_field":
        return location.unknown_name("field", context["name"], context["known"])
    if kind == "missing":
        return location.error("this field is needed")
    if kind == "value_error":
        return location.error(str(context["error"]))
    if kind == "union_tag_invalid":
        return (location / "kind").unknown_name("kind", context["tag"], _quoted(context["expected_tags"]))
    if kind == "literal_error":
        name = location.path.rpartition(".")[2]
        return location.unknown_name(name, problem["input"], _quoted(context["expected"]))
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return location.error(f"needs fields (name: value), not {short_repr(problem['input'])}")
    if kind == "string_type" and not isinstance(problem["input"], list | dict | None):
        return location.error(f"{short_repr(problem['input'])} is not text; write it in quotes")
    if kind == "tuple_type":
        return location.error(f"needs a list, not {short_repr(problem['input'])}")
    message = problem["msg"]
    return location.error(f"{short_repr(problem['input'])}: {message[:1].lower()}{message[1:]}")


def _quoted(choices: str) -> list[str]:
    """Return the names in pydantic's text ``'a', 'b' or 'c'``."""
    return re.findall("'(.*?)'", choices)
