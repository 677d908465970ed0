"""Read the rows of a CSV file in any encoding and with any separator that spreadsheet programs write."""

import csv
import io
import re
from contextlib import suppress
from pathlib import Path

_NOT_WESTERN = re.compile(
    r"\0|[^\x00-\x7f]{3}|[^\x00-\x7fÀ-ÿ\u0152-\u017e\u2013-\u2026\u20ac\u2122°®©ªº«»]"
    r"|[a-z][ŒŠŽŸ]|[A-Z][ŒŠŽŸ][a-z]|[^\W\d_][\u201a-\u2026\u2122][^\W\d_]"
)
"""Pattern of a text that was wrongly decoded as Windows-1252: it has a NUL character, three characters beyond ASCII in
a row, or a character that Western languages do not use. In Mac Roman and CP850, ``Käse`` is ``KŠse`` and ``K„se``."""

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_REMARK = "read with {} between columns"
BY_SPACES = _REMARK.format("spaces")
"""The remark on a table whose columns are divided by spaces."""


def read_rows(path: Path) -> tuple[list[list[str]], list[str]]:
    """Return the non-empty rows of a table, with stripped fields; and remarks on how the table was read.

    Commas, semicolons, tabs and bars are tried in this order. The separator is the first that divides all rows into the
    same number of fields, at least two; or else the one that divides the first line into the most fields. Spaces
    separate the columns if the first line has none of these four. A first line ``sep=X``, which Excel writes, states
    the separator instead.

    Raises ``OSError`` if the file cannot be read, ``ValueError`` if its encoding is not known, ``csv.Error`` if it is
    no table.
    """
    text, notes = _decoded(path.read_bytes())
    text = re.sub("\r\n?", "\n", text).lstrip("\n")
    first, _, rest = text.partition("\n")
    *marks, space = _SEPARATORS
    if space in first.strip() and not any(mark in first for mark in marks):
        marks = [space]
    if directive := re.fullmatch(r'"?sep=(.)"?', first.strip()):  # a line that Excel writes and reads
        marks, text = [directive[1]], rest
    for separator in marks:
        with suppress(csv.Error):
            rows = _divided(text, separator)
            if rows and len(rows[0]) > 1 and {len(row) for row in rows} == {len(rows[0])}:
                break
    else:
        separator = max(marks, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
        rows = _divided(text, separator)
    if separator != ",":
        notes.append(_REMARK.format(_SEPARATORS.get(separator, repr(separator))))
    return rows, notes


def _divided(text: str, separator: str) -> list[list[str]]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    rows = ([field.strip() for field in line] for line in lines)
    return [row for row in rows if any(row)]


def _decoded(data: bytes) -> tuple[str, list[str]]:
    """Return the text of bytes in UTF-8, UTF-16 (with or without a byte order mark) or Windows-1252; and remarks."""
    start, encoding = data[:200], "utf-8-sig"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        encoding = "utf-16" if start[0] >= 0xFE else "utf-16-le" if start[1:2] == b"\0" else "utf-16-be"
    with suppress(UnicodeDecodeError):
        text = data.decode(encoding).removeprefix("\ufeff")
        if "\0" not in text:
            return text, [] if encoding == "utf-8-sig" else ["read as UTF-16"]
    text = data.decode("cp1252", errors="replace")
    if _NOT_WESTERN.search(text):
        raise ValueError("its text is neither UTF-8 nor Windows-1252; save it as CSV in UTF-8")
    shown = re.search(r"\w*[^\W\x00-\x7f]\w*", text)
    return text, [f"not UTF-8, so read as Windows-1252{f', as in {shown[0]!r}' if shown else ''}"]
