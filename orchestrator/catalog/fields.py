"""Field types and the base class that all entries of catalog and grid files share."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt

from orchestrator.util.errors import short_repr

OPEN_CLIP = "open_clip."
"""Prefix for lists that open_clip has, such as the 1,000 ImageNet names: an entry says ``open_clip.NAME``."""

KEY_PATTERN = r"^[a-z0-9][a-z0-9_.-]*$"

Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True)] | str
PositiveNumber = Annotated[float, Field(strict=True, gt=0)]
PositiveInt = Annotated[StrictInt, Field(ge=1)]
Key = Annotated[str, Field(pattern=KEY_PATTERN)]


def printable(text: str) -> str:
    """The text, for a table. Raises ``ValueError`` if a spreadsheet would run it or a terminal would obey it."""
    if text[:1] in ("=", "+", "-", "@"):
        raise ValueError(f"{text[:80]!r} begins like a formula, and a spreadsheet that opens a table would run it")
    if not text.isprintable():
        raise ValueError(f"{text[:80]!r} holds characters that do not print")
    return text


Title = Annotated[str, AfterValidator(printable)]


class StrictModel(BaseModel):
    """Base of everything read from catalog and grid files: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def check_templates(value: Any) -> Any:
    """A list of prompt templates. Raises ``ValueError`` for an empty list or a template without ``{}``."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{short_repr(value)} is neither a list of templates nor the name of a set")
    for template in value:
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"the template {short_repr(template)} has no {{}} for the class name")
    return value


def key_problem(key: str) -> str | None:
    """What is wrong with the key of an entry, which becomes part of file names; ``None`` if nothing is."""
    if re.fullmatch(KEY_PATTERN, key):
        return None
    return f"the name {key!r} may hold lower-case letters, digits, '_', '-' and '.' only"
