"""The paper's tables alone, from ``grids/published``: one page, and each table as a file in every format."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.page.rendering import page_table, render
from orchestrator.report.paper.paper_tables import published_tables
from orchestrator.report.tables.formats import to_csv, to_html, to_latex, to_latex_document, to_markdown
from orchestrator.util.errors import UserError


def write_published(folder: Path) -> Path:
    """Write ``tables/paper_*.{csv,md,tex,html}``, ``tables.tex`` (all in one document) and ``index.html``.

    Returns the path of the page. Raises ``UserError`` if ``folder`` is a file.
    """
    tables = list(published_tables())
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
    sections = [
        (table.name, table.title.removesuffix(" (published)"), page_table(table, sortable=False)) for table in tables
    ]
    page.write_text(render("published.html.j2", sections=sections), encoding="utf-8")
    return page
