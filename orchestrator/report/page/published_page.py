"""The paper's tables by themselves: files of every format and one page, from ``grids/published`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from orchestrator.report.paper.paper_tables import published_alone
from orchestrator.report.tables.formats import to_csv, to_html, to_latex, to_latex_document, to_markdown
from orchestrator.report.tables.table import Table
from orchestrator.util.errors import UserError

TITLE = "The published numbers"
_LEDE = (
    "The tables of the paper, as printed. Footnotes say where the authors' code, or the numbers themselves, show how a "
    "number came about that another measurement would not meet."
)


def write_published(folder: Path) -> Path:
    """Write ``tables/paper_*.{csv,md,tex,html}``, ``tables.tex`` (all in one document) and ``index.html``.

    Returns the page. Raises ``UserError`` where ``folder`` is a file.
    """
    tables = list(published_alone())
    try:
        (folder / "tables").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{folder} is not a folder", where="--output", hint="give a folder, or a new name") from None
    for table in tables:
        texts = {"csv": to_csv(table), "md": to_markdown(table), "tex": to_latex(table), "html": f"{to_html(table)}\n"}
        for ending, text in texts.items():
            (folder / "tables" / f"{table.name}.{ending}").write_text(text, encoding="utf-8")
    (folder / "tables.tex").write_text(to_latex_document(tables), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(published_page(tables), encoding="utf-8")
    return page


def published_page(tables: Sequence[Table]) -> str:
    """One page of the tables; it needs nothing else."""
    css = Markup((files("orchestrator.report.page") / "templates" / "page.css").read_text(encoding="utf-8"))
    links = Markup(" ").join(Markup('<a href="#{}">{}</a>').format(table.name, _short(table)) for table in tables)
    sections = Markup("\n").join(
        Markup(
            '<section id="{}"><h2>{}</h2><figure class="table"><div class="scroll" tabindex="0" role="region" '
            'aria-label="table">{}</div><figcaption>{}</figcaption></figure></section>'
        ).format(table.name, _short(table), to_html(table), table.caption)
        for table in tables
    )
    return Markup(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>{title}</title><link rel="icon" href="data:,">'
        '<style>{css}</style></head>\n<body><header><h1>{title}</h1><p class="lede">{lede}</p></header>'
        "<nav>{links}</nav>\n<main>\n{sections}\n</main></body></html>\n"
    ).format(title=TITLE, css=css, lede=_LEDE, links=links, sections=sections)


def _short(table: Table) -> str:
    return table.title.removesuffix(" (published)")
