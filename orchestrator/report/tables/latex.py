"""A table in LaTeX, ready to paste: booktabs, best bold, second underlined, sized to fit a page (see ``latex_fit``)."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.notation import DASH, MINUS, SELECTED, signed
from orchestrator.report.tables.latex_fit import SMALLEST_TYPE, Fit, fit_of
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


def latex_escape(content: str) -> str:
    """``content`` with all characters that LaTeX would read as commands escaped.

    A character that LaTeX's default fonts cannot print is replaced by its code point, as ``[U+65E5]``.
    """
    return "".join(_ESCAPED.get(c, c if _printable(c) else f"[U+{ord(c):04X}]") for c in content)


def _printable(character: str) -> bool:
    return character.isascii() or "\xa1" <= character <= "\xff"


def to_latex(table: Table) -> str:
    """The table as a LaTeX environment. The first lines are comments that name the packages it needs."""
    fit = fit_of(table)
    table = fit.table
    packages = dict.fromkeys(("booktabs", *fit.packages, *(("graphicx",) if table.upright_titles else ())))
    lines = [f"% needs \\usepackage{{{name}}}" for name in packages]
    lines += _long(table, fit) if "longtable" in fit.packages else _float(table, fit)
    return "\n".join([*lines, ""])


def _float(table: Table, fit: Fit) -> list[str]:
    """A table on one page, which LaTeX places."""
    body = [
        _begin(table),
        r"\toprule",
        *_head(table),
        r"\midrule",
        *_body(table, fit),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if fit.shrunk:
        body = [r"\resizebox{\linewidth}{!}{%", *body, "}"]
    place = "" if fit.environment == "sidewaystable*" else "[t]"
    return [
        rf"\begin{{{fit.environment}}}{place}",
        r"\centering",
        fit.size,
        r"\setlength{\tabcolsep}{3pt}",
        _caption(table),
        rf"\label{{tab:{table.name}}}",
        *body,
        *(
            [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize\raggedright", *_notes(table), "}"]
            if table.footnotes
            else []
        ),
        rf"\end{{{fit.environment}}}",
    ]


def _long(table: Table, fit: Fit) -> list[str]:
    """A table over several pages with the header on each. LaTeX cannot set it in two columns of text."""
    lines = [
        "{" + fit.size,
        rf"\setlength{{\tabcolsep}}{{{2 if fit.size == SMALLEST_TYPE else 3}pt}}",
        _begin(table, "longtable"),
        _caption(table) + rf"\label{{tab:{table.name}}}\\",
        r"\toprule", *_head(table), r"\midrule", r"\endfirsthead",
        r"\toprule", *_head(table), r"\midrule", r"\endhead",
        r"\bottomrule", r"\endlastfoot",
        *_body(table, fit),
        r"\end{longtable}",
        *([r"\noindent\parbox{\linewidth}{\footnotesize\raggedright", *_notes(table), "}"] if table.footnotes else []),
        "}",
    ]  # fmt: skip
    return [r"\begin{landscape}", *lines, r"\end{landscape}"] if fit.environment == "landscape" else lines


def _begin(table: Table, environment: str = "tabular") -> str:
    columns = "l" * table.text_columns + "r" * (len(table.header) - table.text_columns)
    return rf"\begin{{{environment}}}{{{columns}}}"


def _caption(table: Table) -> str:
    caption = f"{table.title}. {table.caption}" if table.caption else f"{table.title}."
    return rf"\caption{{{latex_escape(caption)}}}"


def _notes(table: Table) -> list[str]:
    return [(f"{_sup(letter)}~" if letter else "") + rf"{latex_escape(note)}\par" for letter, note in table.footnotes]


def _head(table: Table) -> list[str]:
    lines = []
    if table.column_groups:
        cells, rules, column = [], [], 1
        for title, span in table.column_groups:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex_escape(title)}}}" if title else " & " * (span - 1))
            if title:
                rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
            column += span
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    titles = []
    for column, title in enumerate(table.header):
        latex = latex_escape(title) + _sup(table.header_footnotes[column] if table.header_footnotes else "")
        upright = table.upright_titles and column >= table.text_columns
        titles.append(rf"\rotatebox{{90}}{{{latex}}}" if upright else latex)
    return [*lines, " & ".join(titles) + r" \\"]


def _body(table: Table, fit: Fit) -> list[str]:
    lines: list[str] = []
    previous: tuple[str, ...] = ()
    for i, row in enumerate(table.rows):
        if i and (i in table.ruled_rows or i == len(table.rows) - table.summary_rows):
            lines.append(r"\midrule" if i == len(table.rows) - table.summary_rows else _rule(table, i))
        texts = tuple(entry.text for entry in row[: table.merged_columns])
        first = next((c for c, (a, b) in enumerate(zip(texts, previous, strict=False)) if a != b), len(previous))
        line = " & ".join("" if c < first else _entry(entry, table, fit) for c, entry in enumerate(row)) + r" \\"
        # LaTeX would read a line that begins so as an option of the line break before it.
        lines.append("{}" + line if line.startswith(("[", "*")) else line)
        previous = texts
    return lines


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
    if entry.std is not None and not table.hide_std:
        latex += rf"{{{small}$\,\pm\,${entry.std:.2f}}}"
    if entry.gain is not None:
        latex += rf" {{{small}({latex_escape(signed(entry.gain))})}}"
    if entry.remark:
        latex += rf" {{{small}{latex_escape(f'[{entry.remark}]')}}}"
    return latex


def to_latex_document(tables: Sequence[Table]) -> str:
    """A whole LaTeX document with all of the tables."""
    packages = ("inputenc", "fontenc", "textcomp", "booktabs", "graphicx", "longtable", "pdflscape", "rotating")
    options = {"inputenc": "[utf8]", "fontenc": "[T1]"}
    lines = [rf"\usepackage{options.get(name, '')}{{{name}}}" for name in packages]
    bodies = [f"{to_latex(table)}\\clearpage" for table in tables]
    return "\n".join([r"\documentclass{article}", *lines, r"\begin{document}", *bodies, r"\end{document}", ""])
