"""A table in LaTeX, ready to paste: booktabs, best bold, second underlined, made to fit a page.

It stays as it is, is shrunk, laid on its side, or set over several pages. Widths are estimated for the text block of
an article, 345 pt by 550 pt. Other classes leave more room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import jinja2

from orchestrator.report.notation import DASH, MINUS, SELECTED, signed
from orchestrator.report.tables.table import Entry, Table

_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "", "pi", "rho", "", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip

_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "→": r"$\rightarrow$",
    "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{NO-BREAK SPACE}": "~", SELECTED: r"$^{\dagger}$", MINUS: "$-$", DASH: "--", "—": "---", "…": r"\ldots{}",
    "\N{LEFT SINGLE QUOTATION MARK}": "`", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``", "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
} | {chr(0x3B1 + i): rf"$\{name}$" for i, name in enumerate(_GREEK) if name}  # fmt: skip

_TEXT_WIDTH, _TEXT_HEIGHT = 345.0, 550.0
_SMALLEST_SCALE = 0.5
"""How far a table is shrunk before it is laid on its side: 9 pt type becomes 4.5 pt."""
_TYPE_SIZES = {r"\small": 9.0, r"\footnotesize": 8.2, r"\scriptsize": 7.5, r"\tiny": 6.4}
"""Points. LaTeX draws letters of small type wider, so these are the sizes at which a larger type is as wide."""
_EM = 0.52
"""The average width of a digit or letter, as a fraction of the type size."""
_LINE = 11
"""Points from one row to the next."""


def latex_escape(content: str) -> str:
    """``content`` with all characters that LaTeX would read as commands escaped.

    A character that LaTeX's default fonts cannot print is replaced by its code point, as ``[U+65E5]``.
    """
    return "".join(_ESCAPED.get(c, c if c.isascii() or "\xa1" <= c <= "\xff" else f"[U+{ord(c):04X}]") for c in content)


def to_latex(table: Table) -> str:
    """The table as a LaTeX environment. The first lines are comments that name the packages it needs."""
    fit = fit_of(table)
    table = fit.table
    groups, first = [], 1
    for title, span in table.column_groups:
        groups.append((title, first, first + span - 1))
        first += span
    return _render(
        "table.tex.j2",
        table=table,
        fit=fit,
        columns="l" * table.text_columns + "r" * (len(table.header) - table.text_columns),
        caption=f"{table.title}. {table.caption}".rstrip(),
        groups=groups,
        lines=list(_lines(table, fit)),
    )


def to_latex_document(tables: Sequence[Table]) -> str:
    """A whole LaTeX document with all of the tables."""
    return _render("document.tex.j2", tables=map(to_latex, tables))


@cache
def _templates() -> jinja2.Environment:
    """The LaTeX templates. Their delimiters are not Jinja's own, which LaTeX uses too."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.report.tables"),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(tex=latex_escape, sup=_sup)
    return environment


def _render(template: str, **values: Any) -> str:
    """The text of a template without its blank lines, which LaTeX would read as ends of paragraphs."""
    text = _templates().get_template(template).render(**values)
    return "".join(f"{line}\n" for line in text.splitlines() if line)


def _lines(table: Table, fit: Fit) -> Iterator[str]:
    """The rows and the rules between them."""
    previous: tuple[str, ...] = ()
    for i, row in enumerate(table.rows):
        if i and i == len(table.rows) - table.summary_rows:
            yield r"\midrule"
        elif i and i in table.ruled_rows:
            yield _rule(table, i)
        texts = tuple(entry.text for entry in row[: table.merged_columns])
        first = next((c for c, (a, b) in enumerate(zip(texts, previous, strict=False)) if a != b), len(previous))
        line = " & ".join("" if c < first else _entry(entry, table, fit) for c, entry in enumerate(row)) + r" \\"
        # LaTeX would read a line that begins so as an option of the line break before it.
        yield "{}" + line if line.startswith(("[", "*")) else line
        previous = texts


def _rule(table: Table, row: int) -> str:
    """The rule above a row. It begins at the first merged column whose text changes."""
    above, here = table.rows[row - 1], table.rows[row]
    changed = next((c for c in range(table.merged_columns) if above[c].text != here[c].text), 0)
    return rf"\cmidrule(lr){{{changed + 1}-{len(table.header)}}}" if changed else r"\midrule"


def _sup(letters: str) -> str:
    return f"$^{{{letters}}}$" if letters else ""


def _entry(entry: Entry, table: Table, fit: Fit) -> str:
    latex = latex_escape(entry.text) + (latex_escape(SELECTED) if entry.selected else "")
    latex = {"best": rf"\textbf{{{latex}}}", "second": rf"\underline{{{latex}}}", "": latex}[entry.highlight]
    latex += _sup(entry.footnotes)
    small = r"\scriptsize" if fit.size == r"\small" else r"\tiny"
    if entry.deviation and not table.hide_std:
        latex += rf"{{{small}$\,\pm\,${entry.deviation[2:]}}}"
    if entry.gain is not None:
        latex += rf" {{{small}({latex_escape(signed(entry.gain, entry.digits))})}}"
    if entry.remark:
        latex += rf" {{{small}{latex_escape(f'[{entry.remark}]')}}}"
    return latex


@dataclass(frozen=True)
class Fit:
    """How a table is set.

    Attributes:
        environment: ``table``, ``table*``, ``sidewaystable*``, ``longtable``, or ``landscape`` for one on its side.
            The last two run over several pages, which LaTeX cannot do in two columns of text.
        table: the table, perhaps with upright titles or without deviations.
        size: size of type.
        shrunk: whether the table is scaled to the width of the text.
    """

    environment: str
    table: Table
    size: str = r"\small"
    shrunk: bool = False


def fit_of(table: Table) -> Fit:
    """The first way that keeps the table readable: as it is, shrunk, on its side, then over several pages.

    Each is tried with the table as it is, with upright titles, and without deviations.
    """
    lines = len(table.rows) + 2 * len(table.footnotes) + 6
    upright = replace(table, upright_titles=True)
    candidates = [(one, _column_lengths(one)) for one in (table, upright, _without_std(upright))]
    if _width(candidates[0][1], 9.0) <= _TEXT_WIDTH and lines * _LINE <= _TEXT_HEIGHT:
        return Fit("table", table)
    one_page = (("table*", _TEXT_WIDTH, _TEXT_HEIGHT), ("sidewaystable*", _TEXT_HEIGHT, _TEXT_WIDTH))
    for (candidate, lengths), (environment, width, height) in product(candidates, one_page):
        scale = min(1.0, width / _width(lengths, 9.0))
        if scale >= _SMALLEST_SCALE and lines * _LINE * scale <= height:
            return Fit(environment, candidate, shrunk=True)
    pages = (("longtable", _TEXT_WIDTH), ("landscape", _TEXT_HEIGHT))
    for (candidate, lengths), (environment, width) in product(candidates, pages):
        for size, points in _TYPE_SIZES.items():
            if _width(lengths, points) <= width:
                return Fit(environment, candidate, size)
    narrowest, lengths = candidates[-1]
    if lines * _LINE * _TEXT_HEIGHT / _width(lengths, 9.0) <= _TEXT_WIDTH:
        return Fit("sidewaystable*", narrowest, shrunk=True)
    return Fit("landscape", narrowest, r"\tiny")


def _without_std(table: Table) -> Table:
    if table.hide_std or not any(entry.std is not None for row in table.rows for entry in row):
        return table
    return replace(table, hide_std=True, note=f"{table.note} Deviations are left out here; the CSV has them.")


def _column_lengths(table: Table) -> list[int]:
    """The number of characters of the longest entry of each column."""
    lengths = []
    for column, title in enumerate(table.header):
        entries = [replace(row[column], std=None) if table.hide_std else row[column] for row in table.rows]
        of_title = 2 if table.upright_titles and column >= table.text_columns else len(title)
        lengths.append(max([of_title, *(len(entry.plain) + len(entry.footnotes) for entry in entries)]))
    return lengths


def _width(lengths: Sequence[int], points: float) -> float:
    """The width in points of such columns in type of this size, with 3 pt on either side of each column."""
    return sum(lengths) * points * _EM + 6 * len(lengths)
