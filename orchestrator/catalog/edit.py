"""Write entries to a user's catalog file without changing the other entries, the comments and the order."""

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
        sections: section -> key -> fields as plain data. Without ``replace``, empty sections are ignored.
        replace: the entries become the only entries of their sections; comments in these sections are lost.

    Raises:
        UserError: the file cannot be read or written, is no catalog file, has an entry of the same key already, or
            cannot be changed without changing the entries that are in it already.
    """
    from ruamel.yaml import YAML  # imported here: it takes 0.1 s, and most commands only read catalogs

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
            raise (location / section).error(f"there is an entry {taken[0]!r} already", hint)
        if existing:
            document[section].update(_quoted(entries))
        elif entries or replace:
            document[section] = _quoted(entries)
        else:
            continue
        wanted[section] = {**existing, **entries}
    stream = io.StringIO()
    yaml.dump(document, stream)
    if not _reads_as(stream.getvalue(), wanted):  # ruamel broke a long key in two; a larger width prevents this
        yaml.width, stream = 2**20, io.StringIO()
        yaml.dump(document, stream)
    if not _reads_as(stream.getvalue(), wanted):
        raise location.error("cannot be changed without changing its other entries", "give another file")
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(stream.getvalue(), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # a circle of links raises RuntimeError
        raise UserError(f"cannot be written: {error}", where=display_path(path)) from None


def _reads_as(text: str, wanted: Any) -> bool:
    """Return whether the catalog's reader reads a YAML text as the wanted value."""
    try:
        return bool(parse_yaml(text, "") == wanted)
    except UserError:  # the text has special characters or two meanings
        return False


def _quoted(value: Any) -> Any:
    """Return the value with quotes around each text that the catalog's reader would not read as text.

    The reader follows YAML 1.1, in which ``no`` is false and ``1:20`` is the number 80. In YAML 1.2, which ruamel
    writes, both are texts. So ruamel alone would write them without quotes.
    """
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in value]
    plain = not isinstance(value, str) or _reads_as(value, value)
    return value if plain else DoubleQuotedScalarString(value)
