"""What all HTML pages share: the templates with their style, script and filters."""

from functools import lru_cache
from importlib.resources import files
from statistics import fmean
from typing import Any

import jinja2
from markupsafe import Markup

from orchestrator.report.figures.drawing import inline_svg
from orchestrator.report.styles import k_title, signed
from orchestrator.report.tables.changes import setting_text
from orchestrator.report.tables.formats import to_html
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize


def render(template: str, **values: Any) -> str:
    """Return a whole page from one of the templates. It needs no network and no other file."""
    css, script = (
        Markup((files("orchestrator.report.page") / "templates" / name).read_text(encoding="utf-8"))
        for name in ("page.css", "page.js")
    )
    return _environment().get_template(template).render(css=css, script=script, **values)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return the templates and their filters.

    They are cached: compiling a template takes longer than making a page.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(
        mean=fmean,
        svg=lambda figure: Markup(inline_svg(figure)),
        html=to_html,
        signed=signed,
        setting=setting_text,
        slug=slug,
        pluralize=pluralize,
        at=k_title,
    )
    return environment
