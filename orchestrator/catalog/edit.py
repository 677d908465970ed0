"""Writing entries to a user's catalog file, of which everything else stays as it is, comments included.

The file is replaced in one step, and only if the new text reads back as the old content with the new entries.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.location import Location, display_path
from orchestrator.catalog.validation import as_mapping
from orchestrator.catalog.yaml_files import EXPONENT_FLOAT, FLOAT_TAG, parse_yaml, read_text
from orchestrator.util.atomic_files import replacing
from orchestrator.util.errors import UserError

_BY_HAND = "write its sections as plain blocks, one indented entry below the other, or give another file"


class _Dumper(yaml.SafeDumper):
    """Quotes a text such as ``1e-3``, which :mod:`yaml_files` would read as a number."""


_Dumper.add_implicit_resolver(FLOAT_TAG, EXPONENT_FLOAT, list("-+0123456789"))


def write_entries(path: Path, sections: Mapping[str, Mapping[str, Any]], *, replace: bool = False) -> None:
    """Add new entries to a catalog file, which is created if it does not exist.

    Args:
        sections: section -> key -> fields as plain data; without ``replace``, empty sections are ignored.
        replace: the entries become the only ones of their sections. Such a section moves to the end of the file, and
            the comments in it are lost.

    Raises:
        UserError: if the file cannot be read or written, is no catalog file, has an entry of that key already, or is
            written in a form that cannot be extended line by line.
    """
    location = Location.of(path)
    text = read_text(path) if path.exists() else ""
    wanted = dict(as_mapping(parse_yaml(text, str(location)) or {}, location))
    for section, entries in sections.items():
        existing = {} if replace else as_mapping(wanted.get(section) or {}, location / section)
        if taken := [key for key in entries if key in existing]:
            hint = "take another name, or remove that entry first"
            raise (location / section).error(f"{taken[0]!r} stands there already", hint)
        if replace:
            lines = text.splitlines()
            if span := _span(lines, section):
                del lines[span[0] : span[1]]
            text = "\n".join(lines).rstrip("\n")
        if entries or replace:
            text = _extended(text, section, entries, empty=not existing, location=location)
            wanted[section] = {**existing, **entries}
    if parse_yaml(text, str(location)) != wanted:
        raise location.error("cannot be changed without changing what else stands there", _BY_HAND)
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:  # the latter: a circle of links
        raise UserError(f"cannot be written: {error}", where=display_path(path)) from None


def _span(lines: list[str], section: str) -> tuple[int, int] | None:
    """The positions of a section's first line and of the line after its last; ``None`` if there is no such section."""
    starts = [position for position, line in enumerate(lines) if re.match(r"[^\s#]", line)]
    spans = pairwise([*starts, len(lines)])
    return next((span for span in spans if re.match(rf"{re.escape(section)}\s*:", lines[span[0]])), None)


def _extended(text: str, section: str, entries: Mapping[str, Any], *, empty: bool, location: Location) -> str:
    """``text`` with the entries at the end of a section, which is begun if it does not exist.

    ``empty`` says that the section has no entries so far.
    """
    lines = text.splitlines()
    span = _span(lines, section)
    if span is None:
        return "\n".join([*lines, *([""] if lines else []), f"{section}:", *_block(entries, 2)]) + "\n"
    head, end = span
    if empty:
        lines[head] = f"{section}:"
    elif not re.fullmatch(rf"{re.escape(section)}\s*:\s*(#.*)?", lines[head]):
        raise (location / section).error("cannot be extended: it is written on one line", _BY_HAND)
    while end > head + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1  # comments at the margin belong to what follows
    inner = [line for line in lines[head + 1 : end] if line.strip() and not line.lstrip().startswith("#")]
    indent = len(inner[0]) - len(inner[0].lstrip()) if inner else 2
    return "\n".join([*lines[:end], *_block(entries, indent), *lines[end:]]) + "\n"


def _block(entries: Mapping[str, Any], indent: int) -> list[str]:
    """The entries as indented lines of YAML."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None}
    dumped = yaml.dump(dict(entries), Dumper=_Dumper, width=110, **options)
    return textwrap.indent(dumped, " " * indent).splitlines()
