"""Figures as SVG and PNG, drawn without a display and byte for byte the same each time."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from orchestrator.report.build import dataset_count, k_title, panel_slug
from orchestrator.report.palette import NEUTRAL, Style
from orchestrator.report.study import Panel

INK, FAINT = "#1c2128", "#d4d9df"
"""Text and grid. A page that embeds the figure replaces them by its own colours, see :func:`inline_svg`."""

_RC: dict[Any, Any] = {
    "svg.hashsalt": "orchestrator",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",  # text stays text: searchable, small, and it takes the reader's colours
    "font.family": ["DejaVu Sans"],
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
    wide: bool = False


@contextmanager
def _canvas(width: float, height: float) -> Iterator[Any]:
    """A figure under this project's settings. No pyplot: it keeps global state and asks for a display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _finished(figure: Any, **words: Any) -> FigureFile:
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # what was laid out once need not be laid out again
    figure.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return FigureFile(svg=svg.getvalue(), png=png.getvalue(), **words)


def accuracy_against_k(panel: Panel, styles: Mapping[str, Style]) -> FigureFile | None:
    """Mean accuracy over the panel's datasets against k; ``None`` where there are not two k to draw a line between."""
    if len(panel.ks) < 2:
        return None
    with _canvas(5.6, 4.2) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for method in panel.methods:
            means = [panel.mean(method, k).accuracy for k in panel.ks]
            ys = [mean.mean if mean else float("nan") for mean in means]
            style = styles[method]
            front = 2 if method in panel.fixed else 3
            axes.plot(
                panel.ks, ys, color=style.colour, linestyle=style.line, marker=style.marker or None,
                markersize=4.5, linewidth=1.8, label=method.lstrip("_") or method, zorder=front,
            )  # fmt: skip
            spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
            if method not in panel.fixed:
                low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                axes.fill_between(panel.ks, low, high, color=style.colour, alpha=0.16, linewidth=0)
        axes.set_xticks(panel.ks, [str(k) for k in panel.ks])
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel("mean accuracy over datasets (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(panel.methods)))
        return _finished(
            figure,
            name=f"accuracy_{panel_slug(panel)}",
            title=f"Accuracy against k, {panel.title}",
            caption=_band_words(panel),
        )


def _band_words(panel: Panel) -> str:
    text = f"Mean over {dataset_count(panel)} datasets. "
    if len(panel.seeds) < 2:
        return text + "One seed, so there is no band: nothing here says how much another draw would differ."
    return text + (
        f"Bands: ± one sample standard deviation over n = {len(panel.seeds)} seeds of that mean. A point is missing "
        "where no seed has every dataset."
    )


_PER_LINE = 6


def dataset_bars(panel: Panel, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Accuracy per dataset at one k: a bar per method, from zero, with the zero-shot accuracy as a line across."""
    tests = panel.tests(k)
    methods = [m for m in panel.methods if m not in panel.fixed or any(r.gain for r in panel.rows if r.method == m)]
    methods = methods or list(panel.methods)
    if not tests:
        return None
    lines = -(-len(tests) // _PER_LINE)
    per_line = -(-len(tests) // lines)
    with _canvas(9.0, 0.7 + 1.9 * lines) as figure:
        grid = figure.subplots(lines, 1, squeeze=False, sharey=True)[:, 0]
        width = 0.8 / len(methods)
        for line, axes in enumerate(grid):
            own = tests[line * per_line : (line + 1) * per_line]
            for place, method in enumerate(methods):
                scores = [panel.score(method, k, test) for test in own]
                xs = [i - 0.4 + width * (place + 0.5) for i in range(len(own))]
                axes.bar(
                    xs, [score.mean if score else 0.0 for score in scores], width=width * 0.92,
                    color=styles[method].colour, label=method.lstrip("_") or method,
                )  # fmt: skip
                bars = [(x, s.mean, s.std) for x, s in zip(xs, scores, strict=True) if s and s.std is not None]
                if bars:
                    axes.errorbar(*zip(*((x, m) for x, m, _ in bars), strict=True), yerr=[b[2] for b in bars],
                                  fmt="none", ecolor=INK, elinewidth=0.8)  # fmt: skip
            frozen = [(i, zero) for i, test in enumerate(own) if (zero := panel.zero_shot(k, test)) is not None]
            axes.hlines([y for _, y in frozen], [i - 0.44 for i, _ in frozen], [i + 0.44 for i, _ in frozen],
                        color=NEUTRAL, linestyle="--", linewidth=1.4, label="zero-shot")  # fmt: skip
            axes.set_xticks(range(len(own)), [_wrapped(test) for test in own])
            axes.set_xlim(-0.5, per_line - 0.5)
            axes.grid(axis="y")
            axes.set_axisbelow(True)
            axes.set_ylim(0, 100)
            axes.set_ylabel("accuracy (%)")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(7, len(methods) + 1))
        at = f" at {k_title(k)}" if k else ""
        seeds = len(panel.seeds)
        spread = f"Whiskers: ± one sample standard deviation over n = {seeds} seeds. " if seeds > 1 else "One seed. "
        return _finished(
            figure,
            name=f"bars_{panel_slug(panel)}_k{k}",
            title=f"Accuracy by dataset{at}, {panel.title}",
            caption=spread + "Dashed: the frozen backbone with its text head on the same images.",
            wide=True,
        )


def _wrapped(name: str, width: int = 16) -> str:
    """A dataset's name on two lines if it is long."""
    if len(name) <= width:
        return name
    cuts = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    cut = min(cuts, key=lambda c: abs(c - len(name) / 2), default=len(name) // 2)
    return f"{name[:cut]}\n{name[cut:].strip()}"


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
