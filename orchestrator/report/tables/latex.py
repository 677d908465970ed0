"""A table in LaTeX, ready to paste: booktabs, best bold, second underlined.

adjustbox shrinks a table that is wider than the text. A long table runs over several pages in small type. A long table
with many columns is printed in landscape, without deviations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import jinja2

from orchestrator.report.styles import DASH, MINUS, SELECTED
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

_ROWS_OF_A_PAGE, _COLUMNS_OF_A_PAGE = 40, 8
"""A table with more rows than this runs over several pages. If it also has more columns than this, it is printed in
landscape. A footnote counts as two rows."""


def latex_escape(content: str) -> str:
    """Return ``content`` with all characters escaped that LaTeX would read as commands.

    A character that LaTeX's default fonts cannot print is replaced by its code point, as ``[U+65E5]``.
    """
    return "".join(_ESCAPED.get(c, c if c.isascii() or "\xa1" <= c <= "\xff" else f"[U+{ord(c):04X}]") for c in content)


def to_latex(table: Table) -> str:
    """Return the table as a LaTeX environment. The first lines are comments that name the packages to load."""
    long = len(table.rows) + 2 * len(table.footnotes) > _ROWS_OF_A_PAGE
    if sideways := long and len(table.header) > _COLUMNS_OF_A_PAGE:
        table = replace(table, upright_titles=True, hide_std=True)
        table = replace(table, note=f"{table.note} Deviations are left out here; the CSV has them.")
    ends = accumulate(span for _, span in table.column_groups)
    return _render(
        "table.tex.j2",
        table=table,
        long=long,
        sideways=sideways,
        columns="l" * table.text_columns + "r" * (len(table.header) - table.text_columns),
        caption=f"{table.title}. {table.caption}".rstrip(),
        groups=[(title, end - span + 1, end) for (title, span), end in zip(table.column_groups, ends, strict=True)],
        lines=list(_lines(table, r"\tiny" if long else r"\scriptsize")),
    )


def to_latex_document(tables: Sequence[Table]) -> str:
    """Return a whole LaTeX document with all of the tables."""
    return _render("document.tex.j2", tables=map(to_latex, tables))


@cache
def _templates() -> jinja2.Environment:
    """Return the LaTeX templates. They have other delimiters than usual, because LaTeX uses braces itself."""
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
    """Return the text of a template without its blank lines, which LaTeX would read as ends of paragraphs."""
    text = _templates().get_template(template).render(**values)
    return "".join(f"{line}\n" for line in text.splitlines() if line)


def _lines(table: Table, small: str) -> Iterator[str]:
    """Yield the rows and the rules between them."""
    previous: tuple[str, ...] = ()
    for i, row in enumerate(table.rows):
        texts = tuple(entry.text for entry in row[: table.merged_columns])
        first = next((c for c, (a, b) in enumerate(zip(texts, previous, strict=False)) if a != b), len(previous))
        if i and i == len(table.rows) - table.summary_rows:
            yield r"\midrule"
        elif i and i in table.ruled_rows:  # the rule begins at the first merged column whose text changes
            below = 0 < first < table.merged_columns
            yield rf"\cmidrule(lr){{{first + 1}-{len(table.header)}}}" if below else r"\midrule"
        line = " & ".join("" if c < first else _entry(entry, table, small) for c, entry in enumerate(row)) + r" \\"
        # After a line break, LaTeX would read "[" or "*" as an option of the line break.
        yield "{}" + line if line.startswith(("[", "*")) else line
        previous = texts


def _sup(letters: str) -> str:
    return f"$^{{{letters}}}$" if letters else ""


def _entry(entry: Entry, table: Table, small: str) -> str:
    latex = latex_escape(entry.text + SELECTED * entry.selected)
    latex = {"best": rf"\textbf{{{latex}}}", "second": rf"\underline{{{latex}}}", "": latex}[entry.highlight]
    latex += _sup(table.letters(entry.notes))
    if entry.deviation and not table.hide_std:
        latex += rf"{{{small}$\,\pm\,${entry.deviation[2:]}}}"
    return latex + "".join(rf" {{{small}{latex_escape(text)}}}" for text in entry.asides)
