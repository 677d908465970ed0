"""What all figures share: the settings of matplotlib, marks and legends, and writing a figure as SVG, PNG and PDF.

Figures need no display, and the same input gives the same bytes.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import escape

from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis import ComparisonGroup
from orchestrator.report.styles import SELECTED, SELECTED_NOTE, at_k

INK, FAINT = "#1c2128", "#d4d9df"
"""The colours of text and of grid lines. :func:`inline_svg` replaces them by the colours of the page."""

WARNING = "#9a5b00"

_FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei", "IPAexGothic", "NanumGothic", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans",
    "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS",
)  # fmt: skip
"""Fonts for Chinese, Japanese and Korean on Linux, macOS and Windows. Those that are installed are used."""

_SETTINGS = Path(__file__).with_name("report.mplstyle")


@dataclass(frozen=True)
class FigureFile:
    """A finished figure in three formats.

    Attributes:
        wide: whether the figure keeps its width on a phone.
        table: name of the table that has the same numbers; empty if no table has them.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    pdf: bytes
    wide: bool = False
    table: str = ""


@contextmanager
def canvas(width: float, height: float, *, arranged: bool = True) -> Iterator[Any]:
    """Yield an empty figure of ``width`` x ``height`` inches, made without pyplot, which keeps global state.

    ``arranged``: whether matplotlib's constrained layout arranges the plots.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    with matplotlib.rc_context(fname=_SETTINGS):
        installed = {font.name for font in fontManager.ttflist}
        matplotlib.rcParams["font.family"] = ["sans-serif", *(name for name in _FALLBACKS if name in installed)]
        figure = Figure(figsize=(width, height), layout="constrained" if arranged else None)
        FigureCanvasAgg(figure)
        yield figure


def finished(figure: Any, name: str, title: str, caption: str, *, wide: bool = False, table: str = "") -> FigureFile:
    """Return the figure in all formats."""
    svg, png, pdf = io.StringIO(), io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser may have fonts for the characters
        area = _whole_area(figure)
        figure.savefig(svg, format="svg", bbox_inches=area, transparent=True, metadata={"Date": None, "Creator": None})
        pixels: dict[str, Any] = {"dpi": 160, "facecolor": "white", "pil_kwargs": {"compress_level": 1}}
        figure.savefig(png, format="png", bbox_inches=area, metadata={"Software": None}, **pixels)
        undated = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
        figure.savefig(pdf, format="pdf", bbox_inches=area, transparent=True, metadata=undated)
    return FigureFile(name, title, caption, svg.getvalue(), png.getvalue(), pdf.getvalue(), wide, table)


def _whole_area(figure: Any) -> Any:
    """Return the area to save, in inches: the figure, and what long names need beyond its edges."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    return Bbox.union([figure.bbox_inches, figure.get_tightbbox()])


def group_figure(
    figure: Any, group: ComparisonGroup, kind: str, title: str, caption: str, *,
    k: int | None = None, table: str = "", **more: Any,
) -> FigureFile:  # fmt: skip
    """Return the finished figure about one group, at all k or at one. It says if numbers were selected on the test set.

    Args:
        kind: the first part of the figure's name. The group and ``k`` are appended to it.
        k: the only k that the figure shows; ``None`` for a figure that is not about a single k.
        table: the first part of the name of the table that has the same numbers; empty if no table has them. The group
            and ``k`` are appended to it. For ``main``, ``k`` is left out, because the main table shows all k.
        more: further arguments of :func:`finished`.
    """
    of_group = f"_{group.slug}"
    of_k = of_group + (f"_k{k}" if k is not None else "")
    title = f"{title}{at_k(k or 0)}, {group.title}"
    table = table and table + (of_group if table == "main" else of_k)
    if group.selects_on_test:
        note = f"{SELECTED} selected on the test set"
        figure.text(0.995, 0.995, note, ha="right", va="top", fontsize=7.5, color=WARNING)
        caption = f"{caption} {SELECTED_NOTE}"
    return finished(figure, kind + of_k, title, caption, table=table, **more)


def plot_means(
    axes: Any, xs: Sequence[float], means: Sequence[Summary | None], *, band: float = 0.0, **line: Any
) -> None:
    """Draw a line through means, with a gap where a mean is missing.

    ``band``: opacity of a band of ± one deviation around the line; 0 for no band. ``line``: matplotlib's settings of
    the line, with its ``color``.
    """
    import numpy as np

    ys = np.array([mean.mean if mean else np.nan for mean in means])
    axes.plot(xs, ys, **line)
    if band:
        stds = np.array([mean.std if mean and mean.std is not None else np.nan for mean in means])
        axes.fill_between(xs, ys - stds, ys + stds, color=line["color"], alpha=band, linewidth=0)


def legend_below(figure: Any, axes: Any, *, columns: int) -> None:
    """Add a legend below the drawing for what ``axes`` shows."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))))


def heat_map(
    axes: Any, values: Any, *, colours: Sequence[str], low: float, high: float, edge: float, rows: Sequence[str],
    columns: Sequence[str], rotation: float, **labels: Any,
) -> None:  # fmt: skip
    """Draw a matrix as coloured squares, the first row at the top, with names beside its rows and below its columns.

    ``colours``: from the colour of ``low`` to that of ``high``; ``edge``: width of the lines between squares;
    ``labels``: matplotlib's settings of the names.
    """
    from matplotlib.colors import LinearSegmentedColormap

    axes.pcolormesh(
        range(len(columns)), range(len(rows)), values, vmin=low, vmax=high, shading="nearest", edgecolors="white",
        linewidth=edge, cmap=LinearSegmentedColormap.from_list("colours", colours),
    )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xticks(range(len(columns)), list(columns), rotation=rotation, ha="right", **labels)
    axes.set_yticks(range(len(rows)), list(rows), **labels)
    for side in axes.spines.values():
        side.set_visible(False)


def inline_svg(figure: FigureFile) -> str:
    """Return the figure as an ``<svg>`` element that scales, takes the page's colours and has unique ids."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--rule)")
    prefix = figure.name + "-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg).replace("url(#", f"url(#{prefix}")
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    # An <svg> element inside HTML needs no namespaces. They look like links to other files, so they are removed.
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)
