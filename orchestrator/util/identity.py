"""Canonical encoding, fingerprints and checksums: equal values get equal names, on every machine and in every version.

The fingerprinted objects hold everything that can change a number. They never hold paths, devices or numbers of
workers. The encoder raises an error for an unknown type. If it used ``str(value)`` instead, equal values could get
different fingerprints without a warning (a lesson from ``fingerprint.py`` of the project marin).
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

FORMAT = 1
"""Version of the encoding. A new version renames every artifact and cell; golden tests detect any change."""

ADDED_LATER: Mapping[str, Any] = {"omitted_at_default": True}
"""Metadata of a dataclass field that was added later. The encoding leaves such a field out if it has its default value,
so values that were encoded before the field existed keep their identity."""

_PLAIN = frozenset((str, int, bool, type(None)))
"""Types whose values are encoded as they are. They are checked first to save time, because planning a grid encodes tens
of thousands of cells."""


def encode(value: Any) -> Any:
    """Encode ``value`` as plain JSON types: dataclasses and mappings as objects, tuples and frozensets as lists.

    Raises ``TypeError`` for an unknown type and ``ValueError`` for NaN or infinity.
    """
    kind: Any = type(value)
    if kind in _PLAIN or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no identity, because JSON has no form for it")
        return value
    if hasattr(kind, "encoded"):  # the type has its own encoding
        return encode(value.encoded())
    if (members := _members(kind)) is not None:
        encoded = {name: encode(getattr(value, name)) for name, _, _ in members}
        for name, _, left_out in members:
            if left_out and encoded[name] in left_out:
                del encoded[name]
        return encoded
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a mapping with an identity may have only text keys")
        return {key: encode(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    raise TypeError(f"cannot fingerprint a {type(value).__name__}: {value!r}")


@cache
def _members(kind: Any) -> tuple[tuple[str, str, tuple[Any, ...]], ...] | None:
    """Return one tuple per field of a dataclass; ``None`` for any other type.

    Each tuple holds the field's name, its JSON key, and the values at which the encoding leaves the field out.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(
        (field.name, f"{_text(field.name)}:", (field.default,) if field.metadata == ADDED_LATER else ())
        for field in dataclasses.fields(kind)
    )


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of ``value``: sorted keys, no spaces, floats in the shortest exact form."""
    kind: Any = type(value)
    if (members := _members(kind)) is None:
        return _text(encode(value))
    texts = []
    for name, key, left_out in members:
        field = getattr(value, name)
        if not left_out or encode(field) not in left_out:
            known = _FROZEN_TEXTS.get(id(field))
            texts.append(key + (_member_text(field) if known is None else known[1]))
    # Each text begins with the field's name in quotes. A quote sorts before every character of a name, so this sorts by
    # name.
    return f"{{{','.join(sorted(texts))}}}"


_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def _member_text(field: Any) -> str:
    """Return the text of the value of a dataclass's field, and cache the text if the value cannot change."""
    text = _text(encode(field))
    if type(field) in _PLAIN or _is_frozen(field):
        if len(_FROZEN_TEXTS) > 4096:
            _FROZEN_TEXTS.clear()
        _FROZEN_TEXTS[id(field)] = field, text
    return text


_FROZEN_TEXTS: dict[int, tuple[Any, str]] = {}
"""``id`` of a value that cannot change -> the value and its text.

Many cells have the same protocol, method and sources, whose texts are kept here. The key is the ``id``, because equal
values can differ in text, such as ``1`` and ``1.0``. While a value is kept, no other value gets its ``id``.
"""


def _is_frozen(value: Any) -> bool:
    """Return whether a value is a frozen dataclass or a tuple of frozen dataclasses, whose text cannot change."""
    if isinstance(value, tuple):
        return all(map(_is_frozen, value))
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def fingerprint(value: Any) -> str:
    """Return the first eight hexadecimal digits of the SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(f"{FORMAT}:{canonical_json(value)}".encode()).hexdigest()[:8]


def file_digest(path: Path, kind: str | Callable[[], Any] = "sha256") -> str:
    """Return the checksum of a file's content in lower-case hexadecimal digits.

    ``kind``: the name of a hash function, or a function that makes a hash object.
    """
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


_UNSAFE = re.compile(r"[^a-z0-9_=,+]+")


@lru_cache(maxsize=4096)
def slug(text: str) -> str:
    """Return ``text`` as a lower-case name that is safe in file systems and URLs; never empty, never ``..``."""
    return _UNSAFE.sub("-", text.lower()).strip("-") or "x"


def address(*words: str | int, of: Any) -> str:
    """Return ``readable-name--8hex``, made of the words and the fingerprint of ``of``."""
    return ".".join(map(slug, map(str, words))) + f"--{fingerprint(of)}"
