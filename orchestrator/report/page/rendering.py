"""What all HTML pages share: the templates with their style and script, and tables as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from orchestrator.report.analysis.verdict import gain_text
from orchestrator.report.figures.drawing import inline_svg
from orchestrator.report.notation import k_title, signed
from orchestrator.report.tables.formats import to_html
from orchestrator.report.tables.table import Table
from orchestrator.report.tables.variants import setting_text

_FILTERED = frozenset({"domain", "backbone", "protocol", "track", "k", "method", "against", "verdict"})
"""Columns for which a long table has a choice of values above it."""
_MANY_COLUMNS = 10
"""Tables with more columns are printed in smaller type."""
_LONG = 12
"""Tables with more rows have filters. The page's script has the same limit for its search field."""


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it. ``narrow`` and ``many`` choose its width and its size of type on paper."""

    title: str
    html: Markup
    note: str
    narrow: bool
    many: bool


def page_table(table: Table, *, sortable: bool = True, element_id: str = "") -> PageTable:
    """The table for a page. Readers can sort a ``sortable`` one and, if it is long, filter and search it."""
    filters = tuple(i for i, name in enumerate(table.header) if name in _FILTERED) if len(table.rows) > _LONG else ()
    element_id = (element_id or f"{table.name}-table") if sortable else ""
    html = to_html(table, sortable=sortable, filters=filters, element_id=element_id)
    return PageTable(table.title, html, table.caption, len(table.header) <= 3, len(table.header) > _MANY_COLUMNS)


def asset(name: str) -> Markup:
    """The text of ``page.css`` or ``page.js``, which every page contains."""
    return Markup((files("orchestrator.report.page") / "templates" / name).read_text(encoding="utf-8"))


def render(template: str, **values: Any) -> str:
    """A whole page from one of the templates. It needs no network and no other file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(
        svg=lambda figure: Markup(inline_svg(figure)), signed=signed, gain=gain_text, setting=setting_text, at=k_title
    )
    return environment.get_template(template).render(css=asset("page.css"), script=asset("page.js"), **values)
