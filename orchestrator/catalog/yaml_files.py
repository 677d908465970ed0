"""Read YAML files of plain data, with line and column in every error, and write entries into a user's catalog file.

The reader differs from ``yaml.safe_load`` in five points. A key given twice is an error. ``1e-3`` is a number, as in
YAML 1.2. Numbers that YAML 1.1 and 1.2 read differently, ``010`` and ``1:30``, are errors. Syntax errors become
:class:`UserError`. A text with too many levels of nesting, or with aliases that repeat too many values, is refused
before any value is built.
"""

import io
import re
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.location import Location, display_path
from orchestrator.catalog.validation import as_mapping
from orchestrator.util.atomic_files import replace_text
from orchestrator.util.errors import UserError, explained

MAX_DEPTH = 50
"""Largest number of levels in a file. libyaml recurses for every level, and a stack overflow ends the process."""

MAX_VALUES = 1_000_000
"""Largest number of values in a file. An aliased value counts each time that it is used."""

_EXPONENT_FLOAT = re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""Floats such as ``1e-3``. YAML 1.1, which PyYAML reads, takes only ``1.0e-3``."""

_TWO_MEANINGS = re.compile(r"[-+]?(0[0-9_]|.*:)")
"""Integers that YAML 1.1 reads to base 8 or 60: ``010`` is 8 and ``1:30`` is 90. In YAML 1.2, ``010`` is 10."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, with unique keys, 64-bit integers and the floats of YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # the base class refuses other nodes
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _refusal(key, f"the key {key.value!r} is given twice")
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_int64(self, node: yaml.Node) -> int:
        """Return an integer. Raises an error for a number beyond 64 bits, and for a text such as ``010`` or ``1:30``.

        Such a text has two meanings (:data:`_TWO_MEANINGS`). Without the limit of 64 bits, a message could not show the
        number: Python refuses to print more than 4,300 digits.
        """
        if _TWO_MEANINGS.match(str(node.value)):
            raise _refusal(node, f"{node.value!r} has two meanings: write a decimal number, or a text in quotes")
        number: int = self.construct_yaml_int(node)
        if abs(number) >= 2**63:
            raise _refusal(node, "a number beyond 64 bits")
        return number


class _Dumper(yaml.SafeDumper):
    """Writes quotes around each text that :class:`_Loader` would not read as text."""


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int64)
for _either in (_Loader, _Dumper):
    _either.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT_FLOAT, list("-+0123456789"))


def dump_yaml(value: Any, flow: bool | None = False) -> str:
    """Return plain data as YAML that :func:`parse_yaml` reads as the same data; ``flow``: PyYAML's style of lists."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow)


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain data in ``text``. Raises ``UserError``, with line and column, if the text is not safe YAML."""
    try:
        _check_size(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and "\n" in text:
            where = f"{where}, line {mark.line + 1}, column {mark.column + 1}"
        hint = ""
        if "could not determine a constructor" in (error.problem or ""):
            hint = "these files hold plain data only: tags that build objects are refused"
        elif "{}" in (line := "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""):
            hint = "inside [...] write quotes around a text with {}"
        elif "mapping values are not allowed" in (error.problem or ""):
            hint = "a colon and a space begin a value: write quotes around a text that has them, or see the line above"
        elif "\t" in line:
            hint = "the line has a tab; YAML is indented by spaces"
        raise UserError(f"not valid YAML: {error.problem or error.context}", where=where, hint=hint) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # `!!timestamp x` raises AttributeError
        raise UserError(f"not valid YAML: {error}", where=where) from None


def _check_size(text: str) -> None:
    """Raise ``yaml.YAMLError`` if a text has too many levels or values, as with an alias inside of its own anchor."""
    count, open_, sizes = 0, list[tuple[str | None, int]](), dict[str | None, int]()  # sizes: anchor -> its values
    for event in yaml.parse(text, Loader=_Loader):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, count))
            sizes[anchor] = MAX_VALUES  # until the collection ends
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            sizes[anchor] = count - before
        count += sizes.get(anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if len(open_) > MAX_DEPTH or count > MAX_VALUES:
            values = f"more than {MAX_VALUES:,} values, repetitions by aliases included"
            raise _refusal(event, f"more than {MAX_DEPTH} levels of nesting, or {values}")


def _refusal(of: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=of.start_mark)


def read_text(path: Path, what: str = "") -> str:
    """Return the text of a file. Raises ``UserError`` if the file, which the message calls ``what``, cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = "save the file as UTF-8" * isinstance(error, UnicodeDecodeError)
        raise UserError(f"{what} cannot be read: {why}".lstrip(), where=display_path(path), hint=hint) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the top-level mapping of a YAML file. Raises ``UserError`` if the file has none or cannot be read."""
    location = Location.of(path)
    return as_mapping(parse_yaml(read_text(path), str(location)), location)


def write_entries(path: Path, sections: Mapping[str, Mapping[str, Any]], *, replace: bool = False) -> None:
    """Add new entries to a catalog file, which is created if it does not exist. The file is replaced in one step.

    The other entries, the comments and the order stay as they are.

    Args:
        sections: section -> key -> fields as plain data. Empty sections are ignored.
        replace: an entry takes the place of an entry of the same key; comments in that entry are lost.

    Raises:
        UserError: the file cannot be read or written, is no catalog file, has an entry of the same key already
            (without ``replace``), or cannot be changed without changing the other entries in it.
    """
    from ruamel.yaml import YAML  # imported here: it takes 0.1 s, and most commands only read catalogs

    location = Location.of(path)
    text = read_text(path) if path.exists() else ""
    wanted = dict(as_mapping(parse_yaml(text, str(location)) or {}, location))
    yaml = YAML()
    yaml.width, yaml.preserve_quotes, yaml.default_flow_style = 110, True, None
    document = yaml.load(text) or {}
    for section, entries in sections.items():
        existing = as_mapping(wanted.get(section) or {}, location / section)
        if not replace and (taken := [key for key in entries if key in existing]):
            hint = "take another name, or remove that entry first"
            raise (location / section).error(f"there is an entry {taken[0]!r} already", hint)
        if existing:
            document[section].update(_quoted(entries))
        elif entries:
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
    # A circle of links raises RuntimeError.
    with explained(OSError, RuntimeError, what="cannot be written", where=str(location)):
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, stream.getvalue())


def _reads_as(text: str, wanted: Any) -> bool:
    """Return whether the catalog's reader reads a YAML text as the wanted value."""
    with suppress(UserError):  # the text has special characters or two meanings
        return bool(parse_yaml(text, "") == wanted)
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
