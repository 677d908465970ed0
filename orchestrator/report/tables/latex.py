"""A table in LaTeX, ready to paste: booktabs, best bold and second underlined, made to fit a page.

Each table says in its first line which packages it needs. One that fits a column stands as it is; a wider one spans
both columns and is shrunk to their width; one that shrinking would make unreadable lies on its side; a long one runs
over pages. Widths are reckoned for an article's 345 pt by 550 pt, so other classes only leave more room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from orchestrator.report.tables.table import Entry, Table
from orchestrator.report.text import DASH, MINUS, SELECTED, signed

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

TEXT_WIDTH, TEXT_HEIGHT = 345.0, 550.0
_SMALLEST = 0.5
"""How far a table is shrunk before it is laid on its side: 9 pt type becomes 4.5 pt."""
_TINY = r"\tiny"
_SIZES = {r"\small": 9.0, r"\footnotesize": 8.2, r"\scriptsize": 7.5, _TINY: 6.4}
"""Points, of letters as wide as a larger type's would be: LaTeX draws its small types wider."""
_EM = 0.52
"""The average width of a digit or letter, as part of the type's size."""


def latex_escape(text: str) -> str:
    """``text`` with everything that LaTeX would read as a command made to print as itself.

    What neither LaTeX's default fonts nor this module can print stands as its code point.
    """
    return "".join(_ESCAPED.get(c, c if c.isascii() or "\xa1" <= c <= "\xff" else f"[U+{ord(c):04X}]") for c in text)


@dataclass(frozen=True)
class Fit:
    """How a table is made to fit: its environment, the table as it is set, size of type, whether it is shrunk."""

    environment: str
    table: Table
    size: str = r"\small"
    shrunk: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """What the table needs beside booktabs."""
        extra = {"longtable": ("longtable",), "landscape": ("longtable", "pdflscape"), "sidewaystable*": ("rotating",)}
        return (*extra.get(self.environment, ()), *(("graphicx",) if self.shrunk else ()))


def fit_of(table: Table) -> Fit:
    """The first way that leaves the table readable: as it is, shrunk, on its side, and at last over several pages.

    Before it is given up to more pages, its titles are turned upright and then its deviations left out.
    """
    lines = len(table.rows) + 2 * len(table.footnotes) + 6
    turned = replace(table, turned=True)
    ways = [(way, _letters(way)) for way in (table, turned, _without_deviations(turned))]
    if _width(ways[0][1], 9.0) <= TEXT_WIDTH and lines * 11 <= TEXT_HEIGHT:
        return Fit("table", table)
    places = (("table*", TEXT_WIDTH, TEXT_HEIGHT), ("sidewaystable*", TEXT_HEIGHT, TEXT_WIDTH))
    for (way, letters), (environment, across, down) in product(ways, places):
        scale = min(1.0, across / _width(letters, 9.0))
        if scale >= _SMALLEST and lines * 11 * scale <= down:
            return Fit(environment, way, shrunk=True)
    for (way, letters), (environment, across) in product(ways, (("longtable", TEXT_WIDTH), ("landscape", TEXT_HEIGHT))):
        for size, points in _SIZES.items():
            if _width(letters, points) <= across:
                return Fit(environment, way, size)
    last, letters = ways[-1]
    if lines * 11 * TEXT_HEIGHT / _width(letters, 9.0) <= TEXT_WIDTH:
        return Fit("sidewaystable*", last, shrunk=True)
    return Fit("landscape", last, _TINY)


def _without_deviations(table: Table) -> Table:
    if table.compact or not any(entry.spread is not None for row in table.rows for entry in row):
        return table
    return replace(table, compact=True, note=f"{table.note} Deviations are left out here; the CSV has them.")


def _letters(table: Table) -> list[int]:
    """How many letters wide each column is."""
    spread = len(" ± 0.00") if table.compact else 0
    letters = []
    for column, title in enumerate(table.header):
        head = 2 if table.turned and column >= table.words else len(title)
        for row in table.rows:
            entry = row[column]
            head = max(head, len(entry.plain) + len(entry.marks) - (spread if entry.spread is not None else 0))
        letters.append(head)
    return letters


def _width(letters: Sequence[int], points: float) -> float:
    """About how many points wide such columns are in type of this size, 3 pt apart on either side."""
    return sum(letters) * points * _EM + 6 * len(letters)


def to_latex(table: Table) -> str:
    """The table as an environment of its own; its first lines name the packages it needs."""
    fit = fit_of(table)
    table = fit.table
    turned = ("graphicx",) if table.turned and "graphicx" not in fit.packages else ()
    packages = ["booktabs", *fit.packages, *turned]
    lines = [f"% needs \\usepackage{{{name}}}" for name in packages]
    lines += _long(table, fit) if "longtable" in fit.packages else _float(table, fit)
    return "\n".join([*lines, ""])


def _float(table: Table, fit: Fit) -> list[str]:
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
    """A table over several pages; its header stands on each. LaTeX cannot set one in two columns of text."""
    lines = [
        "{" + fit.size,
        rf"\setlength{{\tabcolsep}}{{{2 if fit.size == _TINY else 3}pt}}",
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
    columns = "l" * table.words + "r" * (len(table.header) - table.words)
    return rf"\begin{{{environment}}}{{{columns}}}"


def _caption(table: Table) -> str:
    words = f"{table.title}. {table.caption}" if table.caption else f"{table.title}."
    return rf"\caption{{{latex_escape(words)}}}"


def _notes(table: Table) -> list[str]:
    return [(rf"$^{{{mark}}}$~" if mark else "") + rf"{latex_escape(text)}\par" for mark, text in table.footnotes]


def _head(table: Table) -> list[str]:
    lines = []
    if table.groups:
        cells, rules, column = [], [], 1
        for title, span in table.groups:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex_escape(title)}}}" if title else " & " * (span - 1))
            if title:
                rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
            column += span
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    titles = []
    for column, title in enumerate(table.header):
        text = latex_escape(title) + _marks(table.header_marks[column] if table.header_marks else "")
        titles.append(rf"\rotatebox{{90}}{{{text}}}" if table.turned and column >= table.words else text)
    return [*lines, " & ".join(titles) + r" \\"]


def _body(table: Table, fit: Fit) -> list[str]:
    lines: list[str] = []
    before: tuple[str, ...] = ()
    for i, row in enumerate(table.rows):
        if i and (i in table.breaks or i == len(table.rows) - table.closing):
            lines.append(r"\midrule" if i == len(table.rows) - table.closing else _rule(table, i))
        words = tuple(entry.text for entry in row[: table.merged])
        first = next((c for c, (a, b) in enumerate(zip(words, before, strict=False)) if a != b), len(before))
        cells = ["" if c < first else _cell(entry, table, fit) for c, entry in enumerate(row)]
        line = " & ".join(cells) + r" \\"
        lines.append(
            "{}" + line if line.startswith(("[", "*")) else line
        )  # after the line break, it would be an option
        before = words
    return lines


def _rule(table: Table, row: int) -> str:
    """The rule above a row: over all columns where the first word changes, else from the first that does."""
    above, here = table.rows[row - 1], table.rows[row]
    changed = next((c for c in range(table.merged) if above[c].text != here[c].text), 0)
    return rf"\cmidrule(lr){{{changed + 1}-{len(table.header)}}}" if changed else r"\midrule"


def _marks(marks: str) -> str:
    return f"$^{{{marks}}}$" if marks else ""


def _cell(entry: Entry, table: Table, fit: Fit) -> str:
    text = latex_escape(entry.text)
    text += latex_escape(SELECTED) if entry.selected else ""
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}", "": text}[entry.mark]
    text += _marks(entry.marks)
    small = r"\scriptsize" if fit.size == r"\small" else r"\tiny"
    if entry.spread is not None and not table.compact:
        text += rf"{{{small}$\,\pm\,${entry.spread:.2f}}}"
    if entry.gain is not None:
        text += rf" {{{small}({latex_escape(signed(entry.gain))})}}"
    if entry.aside:
        text += rf" {{{small}{latex_escape(f'[{entry.aside}]')}}}"
    return text


def to_latex_document(tables: Sequence[Table]) -> str:
    """A whole document of the tables, to be compiled as it is."""
    packages = ("inputenc", "fontenc", "textcomp", "booktabs", "graphicx", "longtable", "pdflscape", "rotating")
    options = {"inputenc": "[utf8]", "fontenc": "[T1]"}
    lines = [rf"\usepackage{options.get(name, '')}{{{name}}}" for name in packages]
    bodies = [f"{to_latex(table)}\\clearpage" for table in tables]
    return "\n".join([r"\documentclass{article}", *lines, r"\begin{document}", *bodies, r"\end{document}", ""])
