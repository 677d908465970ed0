"""What all catalog entries share: the base class, the checked kinds of fields, and what a name may look like."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt

from orchestrator.util.errors import short_repr

OPEN_CLIP = "open_clip."
"""Lists that open_clip ships (1,000 ImageNet names, 80 templates) are named ``open_clip.NAME``, not typed again."""

Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True)] | str
Number = Annotated[float, Field(strict=True, gt=0)]
Count = Annotated[StrictInt, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]


def printable(text: str) -> str:
    """A text for tables. Raises ``ValueError`` for what a spreadsheet would run or a terminal would obey."""
    if text[:1] in ("=", "+", "-", "@"):
        raise ValueError(f"{text[:80]!r} begins like a formula, and a spreadsheet that opens a table would run it")
    if not text.isprintable():
        raise ValueError(f"{text[:80]!r} holds characters that do not print")
    return text


Title = Annotated[str, AfterValidator(printable)]


class StrictModel(BaseModel):
    """What all entries share: no unknown field, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def check_templates(value: Any) -> Any:
    """A list of prompt templates. Raises ``ValueError`` for an empty list or a template without ``{}``."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{short_repr(value)} is neither a list of templates nor the name of a set")
    for template in value:
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"the template {short_repr(template)} has no {{}} for the class name")
    return value


def key_problem(name: str) -> str | None:
    """What is wrong with a key, if anything: it names files and addresses, so it must be plain."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        return None
    return f"the name {name!r} may hold lower-case letters, digits, '_', '-' and '.' only"
