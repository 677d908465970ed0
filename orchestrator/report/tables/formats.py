"""A table as CSV, Markdown and HTML, and, by ``latex``, as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from markupsafe import Markup, escape

from orchestrator.report.tables.latex import latex_escape, to_latex, to_latex_document
from orchestrator.report.tables.table import Entry, Table
from orchestrator.report.text import SELECTED, SELECTED_NOTE, signed

__all__ = ["latex_escape", "to_csv", "to_html", "to_latex", "to_latex_document", "to_markdown"]


def to_csv(table: Table) -> str:
    """Numbers in full, in columns of their own: a measured column is followed by its deviation, n and gain.

    Where any row holds numbers that test labels may have chosen, a last column says which.
    """
    extras: list[tuple[str, Callable[[Entry], float | None]]] = [
        ("std", lambda entry: entry.spread),
        ("n", lambda entry: entry.n or None),
        ("gain", lambda entry: entry.gain),
    ]
    used = [
        [extra for extra in extras if any(extra[1](row[column]) is not None for row in table.rows)]
        for column in range(len(table.header))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = []
    for title, own in zip(table.full_header, used, strict=True):
        header += [title, *(f"{title} {name}".strip() for name, _ in own)]
    writer.writerow([*header, "selected_on_test"] if table.selected else header)
    for row in table.rows:
        line: list[str] = []
        for column, (entry, own) in enumerate(zip(row, used, strict=True)):
            missing = entry.text if column < table.words else ""
            line += [missing if entry.value is None else _exact(entry.value)]
            line += [_exact(value) for value in (get(entry) for _, get in own)]
        if table.selected:
            line.append(str(any(entry.selected for entry in row)).lower())
        writer.writerow(line)
    return out.getvalue()


def _exact(value: float | None) -> str:
    """Six digits after the point are beyond what any test split resolves; no rounding noise, no trailing zeros."""
    return "" if value is None else f"{round(value, 6) + 0.0:.6f}".rstrip("0").rstrip(".")


def to_markdown(table: Table) -> str:
    """A GitHub table, best bold and second underlined, with the note under it."""
    wrap = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}
    marks = table.header_marks or ("",) * len(table.header)
    lines = [[_markdown(title) + _raised(mark) for title, mark in zip(table.full_header, marks, strict=True)]]
    lines += [
        [
            wrap[entry.mark].format(_markdown(entry.short if table.compact else entry.plain)) + _raised(entry.marks)
            for entry in row
        ]
        for row in table.rows
    ]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(table.header))]
    rule = ["-" * w if i < table.words else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    text = "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )
    notes = "".join(f"\n{_raised(mark)} {_markdown(note)}  ".replace("\n ", "\n") for mark, note in table.footnotes)
    return f"### {_markdown(table.title)}\n\n{text}\n\n{_markdown(table.caption)}\n{notes.rstrip()}".rstrip() + "\n"


def _raised(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def _markdown(text: str) -> str:
    for character in "\\|*_<>`[]":
        text = text.replace(character, "\\" + character)
    return text


def to_html(table: Table, *, sortable: bool = False, filters: tuple[int, ...] = (), element_id: str = "") -> Markup:
    """The ``<table>`` element; ``sortable`` and ``filters`` (columns) are what the page's script looks for."""
    attributes = Markup(' id="{}"').format(element_id) if element_id else Markup("")
    if sortable:
        attributes += Markup(' data-sortable data-filters="{}"').format(",".join(map(str, filters)))
    marks = table.header_marks or ("",) * len(table.header)
    heads = Markup("").join(
        Markup('<th scope="col"{}>{}{}</th>').format(
            Markup("") if i < table.words else Markup(' class="num"'), title, Markup(_raised(marks[i]))
        )
        for i, title in enumerate(table.header)
    )
    groups = Markup("").join(
        Markup('<th scope="colgroup" class="spanning" colspan="{}">{}</th>').format(span, title)
        if title
        else Markup('<td colspan="{}"></td>').format(span)
        for title, span in table.groups
    )
    first = len(table.rows) - table.closing
    rows = Markup("\n").join(
        Markup("<tr{}>{}</tr>").format(
            Markup(' class="closing"') if i >= first or i in table.breaks else Markup(""),
            Markup("").join(
                _html(entry, column < table.words, column == 0, compact=table.compact)
                for column, entry in enumerate(row)
            ),
        )
        for i, row in enumerate(table.rows)
    )
    notes = Markup("<br>").join(Markup("{} {}").format(Markup(_raised(mark)), text) for mark, text in table.footnotes)
    foot = Markup('\n<tfoot><tr><td class="footnotes" colspan="{}">{}</td></tr></tfoot>').format(
        len(table.header), notes
    )
    return Markup("<table{}><caption>{}</caption><thead>{}<tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>{}</table>").format(
        attributes,
        table.title,
        Markup("<tr>{}</tr>").format(groups) if groups else "",
        heads,
        rows,
        foot if table.footnotes else "",
    )


def _html(entry: Entry, is_word: bool, is_first: bool, *, compact: bool = False) -> Markup:
    """One cell. Built from strings rather than templates: a full grid has tens of thousands."""
    attributes = "" if is_word else ' class="num"'
    if entry.value is not None and not is_word:
        attributes += f' data-v="{round(entry.value, 6)}"'
    if entry.note:
        attributes += f' title="{escape(entry.note)}"'
    chip = f'<i class="chip" style="background:{escape(entry.colour)}"></i>' if entry.colour else ""
    spread = f' <span class="sd">±&nbsp;{entry.spread:.2f}</span>' if entry.spread is not None and not compact else ""
    gain = f' <span class="gain">{signed(entry.gain)}</span>' if entry.gain is not None else ""
    aside = f' <span class="aside">{escape(entry.aside)}</span>' if entry.aside else ""
    tag = 'th scope="row"' if is_first else "td"
    emphasis = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}[entry.mark]
    dagger = f'<sup class="dagger" title="{SELECTED_NOTE[2:]}">{SELECTED}</sup>' if entry.selected else ""
    body = chip + emphasis.format(escape(entry.text)) + dagger + _raised(entry.marks)
    return Markup(f"<{tag}{attributes}>{body}{spread}{aside}{gain}</{tag[:2]}>")
