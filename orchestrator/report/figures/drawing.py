"""How every figure is drawn: without a display, byte for byte the same each time, as SVG, PNG and PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from orchestrator.report.figures.fonts import FAMILY, families
from orchestrator.report.text import SELECTED, SELECTED_NOTE

INK, FAINT = "#1c2128", "#d4d9df"
"""Text and grid. A page that embeds the figure replaces them by its own colours, see :func:`inline_svg`."""

WARNING = "#9a5b00"

_RC: dict[Any, Any] = {
    "svg.hashsalt": "orchestrator",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.fonttype": "none",  # text stays text: searchable, small, and it takes the reader's colours
    "font.size": 9.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class FigureFile:
    """One finished figure; ``wide`` if it should not be shrunk to a phone's width."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    pdf: bytes
    wide: bool = False


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """A figure under this project's settings. No pyplot: it keeps global state and asks for a display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_RC, "font.family": list(families())}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def finished(figure: Any, *, caption: str, selected: bool, **words: Any) -> FigureFile:
    """The figure as files; ``selected`` has it say, in the drawing and under it, that test labels chose."""
    if selected:
        figure.text(
            0.995, 0.995, f"{SELECTED} selected on the test set", ha="right", va="top", fontsize=7.5, color=WARNING
        )
        caption = f"{caption} {SELECTED_NOTE}"
    svg, png, pdf = io.StringIO(), io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # what was laid out once need not be laid out again
    figure.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    undated = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
    figure.savefig(pdf, format="pdf", transparent=True, metadata=undated)
    text = svg.getvalue().replace(f"'{FAMILY}', ", "")
    return FigureFile(caption=caption, svg=text, png=png.getvalue(), pdf=pdf.getvalue(), **words)


def legend_below(figure: Any, axes: Any, *, columns: int) -> None:
    """A legend under the drawing, of what ``axes`` shows."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))))


def legend_label(method: str) -> str:
    """A method's name in a legend, from which matplotlib drops names that begin with an underscore."""
    return method.lstrip("_") or method


def inline_svg(figure: FigureFile) -> str:
    """The SVG as an element of a page: it scales, takes the page's text and rule colours, and its ids are its own."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--rule)")
    prefix = figure.name + "-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg).replace("url(#", f"url(#{prefix}")
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    # Vector namespaces are names, not addresses, but an element inside HTML needs none of them.
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)
