"""Canonical encoding and fingerprints: the same thing has the same name, on every machine, for ever.

Everything that can change a number enters; paths, devices, worker counts do not, because they are never put into
the objects that are fingerprinted. The encoder raises on a type it does not know: a permissive ``str(value)`` would
let a value silently fork its identity (the lesson of marin's ``fingerprint.py``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

FORMAT = 1
"""Version of the encoding. Raising it renames every artifact and cell; golden tests hold it still."""

_PLAIN = frozenset((str, int, bool, type(None)))
"""What most values are; looked up first, since a grid's plan encodes tens of thousands of cells."""


def encode(value: Any) -> Any:
    """``value`` as plain JSON types, canonically: dataclasses and mappings become sorted objects, tuples lists.

    Raises ``TypeError`` for an unknown type and ``ValueError`` for NaN or infinity.
    """
    kind: Any = type(value)
    if kind in _PLAIN or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no identity: it does not equal itself or has no JSON form")
        return value
    if (names := _field_names(kind)) is not None:
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("only text keys have a canonical order")
        return {key: encode(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    raise TypeError(f"cannot fingerprint a {type(value).__name__}: {value!r}")


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a dataclass, ``None`` of any other type; asked for often, and never another."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``: keys sorted, no spaces, floats by their shortest exact spelling."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(value: Any) -> str:
    """Eight hexadecimal digits naming ``value``."""
    text = f"{FORMAT}:{canonical_json(value)}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_UNSAFE = re.compile(r"[^a-z0-9_=,+]+")


def slug(text: str) -> str:
    """A lower-case name safe in every file system and URL; never empty, never ``..``."""
    return _UNSAFE.sub("-", text.lower()).strip("-") or "x"


def address(*words: str | int, of: Any) -> str:
    """``readable-name--8hex`` for the thing ``of``."""
    return ".".join(slug(str(word)) for word in words) + f"--{fingerprint(of)}"
