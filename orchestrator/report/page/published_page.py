"""The paper's tables alone, from ``grids/published``: one page, and each table as a file in every format."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.page.rendering import render
from orchestrator.report.paper.paper_tables import published_tables
from orchestrator.report.tables.formats import FILE_FORMATS, to_html
from orchestrator.report.tables.latex import to_latex_document
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
        for ending, to_text in {**FILE_FORMATS, "html": to_html}.items():
            (folder / "tables" / f"{table.name}.{ending}").write_text(to_text(table), encoding="utf-8")
    (folder / "tables.tex").write_text(to_latex_document(tables), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(render("published.html.j2", tables=tables), encoding="utf-8")
    return page
