"""Adding entries to a user's catalog file: what stands there stays as it is, comments included.

The file is replaced in one step, and only by a text that reads back as what stood there and the new entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.location import Location, display_path
from orchestrator.catalog.validation import as_mapping
from orchestrator.catalog.yaml_files import parse_yaml
from orchestrator.util.errors import UserError

Sections = Mapping[str, Mapping[str, Any]]
"""Section -> key -> fields, as in the file."""


class _Dumper(yaml.SafeDumper):
    """Quotes a text that this project's reader would take for a number (``1e-3``)."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def add_entries(path: Path, sections: Sections) -> None:
    """Add new entries to a catalog file, which is made if it is not there.

    Args:
        path: the file.
        sections: plain data; a section or an entry that is empty is left alone.

    Raises:
        UserError: the file cannot be read or written, is no catalog file, has an entry of that key already, or is
            written in a form that cannot be extended line by line.
    """
    location = Location.of(path)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=str(location)) from None
    present = as_mapping(parse_yaml(text, str(location)) or {}, location)
    expected: dict[str, Any] = {**present}
    for section, entries in sections.items():
        if not entries:
            continue
        there = as_mapping(present.get(section) or {}, location / section)
        taken = [key for key in entries if key in there]
        if taken:
            raise UserError(
                f"{taken[0]!r} stands there already",
                where=str(location / section),
                hint="take another name, or remove that entry first",
            )
        text = _extended(text, section, entries, nothing_there=not there, location=location)
        expected[section] = {**there, **entries}
    if parse_yaml(text, str(location)) != expected:
        raise UserError("cannot be extended without changing what stands there", where=str(location), hint=_BY_HAND)
    _replace(path, text)


_BY_HAND = "write its sections as plain blocks, one indented entry below the other, or give another file"


def _extended(text: str, section: str, entries: Mapping[str, Any], *, nothing_there: bool, location: Location) -> str:
    """``text`` with the entries at the end of a section, which is begun if it is not there."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(rf"{re.escape(section)}\s*:", line)]
    if not heads:
        return "\n".join([*lines, *([""] if lines else []), f"{section}:", *_block(entries, 2)]) + "\n"
    head = heads[0]
    if nothing_there:
        lines[head] = f"{section}:"
    elif not re.fullmatch(rf"{re.escape(section)}\s*:\s*(#.*)?", lines[head]):
        raise UserError("cannot be extended: it is written on one line", where=str(location / section), hint=_BY_HAND)
    end = next((i for i in range(head + 1, len(lines)) if re.match(r"[^\s#]", lines[i])), len(lines))
    while end > head + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1  # comments at the margin belong to what follows
    inner = [line for line in lines[head + 1 : end] if line.strip() and not line.lstrip().startswith("#")]
    indent = len(inner[0]) - len(inner[0].lstrip()) if inner else 2
    return "\n".join([*lines[:end], *_block(entries, indent), *lines[end:]]) + "\n"


def _block(entries: Mapping[str, Any], indent: int) -> list[str]:
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None}
    dumped = yaml.dump(dict(entries), Dumper=_Dumper, width=110, **options)
    return [" " * indent + line if line else line for line in dumped.splitlines()]


def _replace(path: Path, text: str) -> None:
    target = path.resolve()  # a link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot be written: {error}", where=display_path(path)) from None


def replace_section(path: Path, section: str, entries: Mapping[str, Any]) -> None:
    """Make one section of a catalog file hold ``entries`` and nothing else; it moves to the file's end.

    Comments inside the section are lost, everything outside it stays. Raises ``UserError`` as :func:`add_entries`.
    """
    location = Location.of(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=str(location)) from None
    present = as_mapping(parse_yaml("\n".join(lines), str(location)) or {}, location)
    head = next((i for i, line in enumerate(lines) if re.match(rf"{re.escape(section)}\s*:", line)), None)
    if head is not None:
        end = next((i for i in range(head + 1, len(lines)) if re.match(r"[^\s#]", lines[i])), len(lines))
        lines = [*lines[:head], *lines[end:]]
    while lines and not lines[-1].strip():
        lines.pop()
    text = _extended("\n".join(lines), section, entries, nothing_there=True, location=location)
    if parse_yaml(text, str(location)) != {**present, section: dict(entries)}:
        raise UserError("cannot be changed without changing what else stands there", where=str(location), hint=_BY_HAND)
    _replace(path, text)
