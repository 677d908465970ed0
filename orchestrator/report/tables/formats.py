"""Prints a table as CSV, Markdown or HTML, and lists the formats of a report's files. ``latex.py`` prints LaTeX."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jinja2
from markupsafe import Markup, escape

from orchestrator.report.styles import SELECTED_NOTE, signed
from orchestrator.report.tables.latex import to_latex
from orchestrator.report.tables.table import Entry, Table

_FILTERED = frozenset({"domain", "backbone", "protocol", "track", "k", "method", "against", "verdict"})
"""Titles of the columns by which readers can filter a long table."""
_LONG_NAME = 32
"""A row's name with more characters than this is broken into lines. Names stay in place when readers scroll sideways,
so long names would hide the numbers."""
_LONG = 12
"""A table with more rows than this has filters and a search field."""


def to_csv(table: Table) -> str:
    """Return the table as CSV. A measured column is followed by columns for its deviation, n and gain.

    A column of methods has the names that grids and records use, and is followed by a column of display names. If test
    labels may have chosen the numbers of some rows, the last column says for which rows.
    """
    columns: list[list[str]] = []
    for i, title in enumerate(table.header_codes or table.full_header):
        entries = [row[i] for row in table.rows]
        texts = [entry.code or entry.text if i < table.text_columns else "" for entry in entries]
        columns.append([title, *(_exact(entry.value) or text for entry, text in zip(entries, texts, strict=True))])
        if any(entry.code for entry in entries):
            columns.append([f"{title} display name", *(entry.text if entry.code else "" for entry in entries)])
        extras: dict[str, list[float | None]] = {
            "std": [entry.std for entry in entries],
            "n": [entry.n or None for entry in entries],
            "gain": [entry.gain for entry in entries],
        }
        for name, numbers in extras.items():
            if any(value is not None for value in numbers):
                columns.append([f"{title} {name}".strip(), *map(_exact, numbers)])
    if table.selected:
        chosen = [str(any(entry.selected for entry in row)).lower() for row in table.rows]
        columns.append(["selected_on_test", *chosen])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    return out.getvalue()


def _exact(value: float | None) -> str:
    """Return a number with up to six decimals, without trailing zeros; empty for ``None``."""
    return "" if value is None else f"{round(value, 6) + 0.0:.6f}".rstrip("0").rstrip(".")


def to_markdown(table: Table) -> str:
    """Return the table for GitHub: best bold, second underlined, the note and the footnotes below."""
    formats = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}
    noted = table.header_notes or ((),) * len(table.header)
    header = [_markdown(title) + _sup(table.letters(own)) for title, own in zip(table.full_header, noted, strict=True)]
    lines = [
        [
            formats[entry.highlight].format(_markdown((replace(entry, std=None) if table.hide_std else entry).plain))
            + _sup(table.letters(entry.notes))
            for entry in row
        ]
        for row in table.rows
    ]
    widths = [max(3, *(len(line[i]) for line in (header, *lines))) for i in range(len(header))]
    rule = ["-" * w if i < table.text_columns else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    body = "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (header, rule, *lines)
    )
    notes = "".join(f"\n{_sup(letter)} {_markdown(note)}  ".replace("\n ", "\n") for letter, note in table.footnotes)
    return f"### {_markdown(table.title)}\n\n{body}\n\n{_markdown(table.caption)}\n{notes.rstrip()}".rstrip() + "\n"


def _sup(letters: str) -> str:
    return f"<sup>{letters}</sup>" if letters else ""


def _markdown(content: str) -> str:
    for character in "\\|*_<>`[]":
        content = content.replace(character, "\\" + character)
    return content


def to_html(table: Table, *, sortable: bool = False) -> Markup:
    """Return the table as a ``<table>`` element. ``sortable``: readers can sort it and, if it is long, filter it."""
    filters = [i for i, title in enumerate(table.header) if title in _FILTERED] if len(table.rows) > _LONG else None
    return Markup(_html_template().render(table=table, sortable=sortable, filters=filters))


@cache
def _html_template() -> jinja2.Template:
    loader = jinja2.PackageLoader("orchestrator.report.tables")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    # The tables of a report have tens of thousands of entries. This function prints them in a third of the time that a
    # Jinja template takes.
    environment.filters["cells"] = lambda row, table: Markup(
        "".join(_html_cell(entry, column, table) for column, entry in enumerate(row))
    )
    return environment.get_template("table.html.j2")


def _html_cell(entry: Entry, column: int, table: Table) -> str:
    tag = "td" if column else "th"
    parts = [f"<{tag}" if column else '<th scope="row"']
    if not column and len(entry.text) > _LONG_NAME:
        parts.append(' class="long"')
    if column >= table.text_columns:
        parts.append(' class="num"' if entry.value is None else f' class="num" data-v="{round(entry.value, 6)}"')
    if entry.tooltip:
        parts.append(f' title="{escape(entry.tooltip)}"')
    if entry.cells:
        parts.append(f' data-c="{escape(" ".join(entry.cells))}"')
    parts.append(">")
    if entry.colour:
        parts.append(f'<i class="chip" style="background:{escape(entry.colour)}"></i>')
    start, end = {"best": ("<b>", "</b>"), "second": ("<u>", "</u>"), "": ("", "")}[entry.highlight]
    parts.append(f"{start}{escape(entry.text)}{end}")
    if entry.selected:
        parts.append(f'<sup class="dagger" title="{escape(SELECTED_NOTE[2:])}">{escape(SELECTED_NOTE[0])}</sup>')
    if entry.notes:
        parts.append(f"<sup>{table.letters(entry.notes)}</sup>")
    if entry.deviation and not table.hide_std:
        parts.append(f' <span class="sd">±&nbsp;{escape(entry.deviation[2:])}</span>')
    if entry.remark:
        parts.append(f' <span class="aside">{escape(entry.remark)}</span>')
    if entry.gain is not None:
        parts.append(f' <span class="gain">{escape(signed(entry.gain, entry.digits))}</span>')
    return f"{''.join(parts)}</{tag}>"


FILE_FORMATS: dict[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
"""Ending of a file's name -> the function that prints a table. A report has every table in all these formats."""
