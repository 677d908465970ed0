"""Writing entries to a user's catalog file, whose other entries, comments and order stay."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.catalog.location import Location, display_path
from orchestrator.catalog.validation import as_mapping
from orchestrator.catalog.yaml_files import parse_yaml, read_text
from orchestrator.util.atomic_files import replacing
from orchestrator.util.errors import UserError


def write_entries(path: Path, sections: Mapping[str, Mapping[str, Any]], *, replace: bool = False) -> None:
    """Add new entries to a catalog file, which is created if it does not exist. The file is replaced in one step.

    Args:
        sections: section -> key -> fields as plain data; without ``replace``, empty sections are ignored.
        replace: the entries become the only entries of their sections; comments in these sections are lost.

    Raises:
        UserError: if the file cannot be read or written, is no catalog file, has an entry of that key already, or
            would not read back as its old content with the new entries.
    """
    from ruamel.yaml import YAML  # takes 0.1 s to import; commands that only read catalogs save it

    location = Location.of(path)
    text = read_text(path) if path.exists() else ""
    wanted = dict(as_mapping(parse_yaml(text, str(location)) or {}, location))
    yaml = YAML()
    yaml.width, yaml.preserve_quotes, yaml.default_flow_style = 110, True, None
    document = yaml.load(text) or {}
    for section, entries in sections.items():
        existing = {} if replace else as_mapping(wanted.get(section) or {}, location / section)
        if taken := [key for key in entries if key in existing]:
            hint = "take another name, or remove that entry first"
            raise (location / section).error(f"{taken[0]!r} stands there already", hint)
        if existing:
            document[section].update(_quoted(entries))
        elif entries or replace:
            document[section] = _quoted(entries)
        else:
            continue
        wanted[section] = {**existing, **entries}
    stream = io.StringIO()
    yaml.dump(document, stream)
    if not _reads_as(stream.getvalue(), wanted):  # a key with spaces was broken across two lines
        yaml.width, stream = 2**20, io.StringIO()
        yaml.dump(document, stream)
    if not _reads_as(stream.getvalue(), wanted):
        raise location.error("cannot be changed without changing what else stands there", "give another file")
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(stream.getvalue(), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # the latter: a circle of links
        raise UserError(f"cannot be written: {error}", where=display_path(path)) from None


def _reads_as(text: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a YAML text has these values."""
    try:
        return bool(parse_yaml(text, "") == wanted)
    except UserError:
        return False


def _quoted(value: Any) -> Any:
    """Quote each text that a reader of YAML 1.1, such as the catalog's, would take for another value.

    ruamel writes YAML 1.2, in which ``no`` and ``1:20`` are texts.
    """
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in value]
    try:
        plain = not isinstance(value, str) or parse_yaml(value, "") == value
    except UserError:
        plain = True  # YAML 1.2 has the same special characters, so ruamel quotes it
    return value if plain else DoubleQuotedScalarString(value)
