"""Draws a figure once and writes it in several formats.

Most of the time that matplotlib takes for a figure goes into its artists: the layout, ticks, and places of texts. It
repeats them for each format. Here, a figure is drawn once, into a recording of the calls to matplotlib's renderer
(``draw_path``, ``draw_text``, ...), and every format is written from the recording.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

from matplotlib.artist import Artist
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, TransformedBbox, TransformedPath

_DPI = 72
"""Dots per inch of a recording, as in SVG and PDF."""
_TRANSFORMS = {"draw_path": (1,), "draw_markers": (1, 3), "draw_path_collection": (0, 4), "draw_quad_mesh": (0, 5)}
"""Which arguments after the graphics context give places on the figure."""


class _Recorder(RendererBase):
    """A renderer that keeps every call, to repeat it on other renderers. Texts have their size in an SVG."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__()
        self._size = width * _DPI, height * _DPI
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def _record(self, name: str, *arguments: Any, **named: Any) -> None:
        if arguments and isinstance(arguments[0], GraphicsContextBase):
            context = GraphicsContextBase()
            context.copy_properties(arguments[0])
            arguments = (context, *arguments[1:])
        self.calls.append((name, arguments, named))

    open_group = partialmethod(_record, "open_group")
    close_group = partialmethod(_record, "close_group")
    draw_path = partialmethod(_record, "draw_path")
    draw_markers = partialmethod(_record, "draw_markers")
    draw_path_collection = partialmethod(_record, "draw_path_collection")
    draw_quad_mesh = partialmethod(_record, "draw_quad_mesh")
    draw_text = partialmethod(_record, "draw_text")
    start_rasterizing = partialmethod(_record, "start_rasterizing")
    stop_rasterizing = partialmethod(_record, "stop_rasterizing")

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return text_to_path.get_text_width_height_descent(s, prop, ismath)

    def flipy(self) -> bool:
        return False

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self._size


class Recording(Artist):
    """A drawn figure, which can be saved in any format by :meth:`save`. Images in a figure are not supported."""

    def __init__(self, figure: Figure) -> None:
        """Draw ``figure``, with transparent backgrounds."""
        super().__init__()
        self._inches = tuple(figure.get_size_inches())
        FigureCanvasSVG(figure)  # so that the layout has the sizes of texts in an SVG
        figure.dpi = _DPI
        figure.patch.set_visible(False)
        for axes in figure.axes:
            axes.patch.set(facecolor="none", edgecolor="none")
        recorder = _Recorder(*self._inches)
        figure.draw(recorder)
        self._calls = recorder.calls[1:-1]  # without the group of the whole figure, which every format has anyway

    def save(self, file: Any, **options: Any) -> None:
        """Write the figure to ``file``; ``options`` are those of matplotlib's ``savefig``."""
        figure = Figure(self._inches)
        figure.add_artist(self)
        figure.savefig(file, **options)
        self.remove()

    def draw(self, renderer: Any) -> None:
        """Repeat the recorded calls on another renderer, which may have other dots per inch."""
        for name, arguments, named in self._calls:
            if not arguments or not isinstance(arguments[0], GraphicsContextBase):
                getattr(renderer, name)(*arguments, **named)
                continue
            # Asked for each call, because the pixels of a part of a figure may have another size in an SVG or PDF.
            scale = renderer.points_to_pixels(1.0)
            context, values = renderer.new_gc(), list(arguments[1:])
            context.copy_properties(arguments[0])
            if name == "draw_text":
                x, y = values[0] * scale, values[1] * scale
                values[:2] = x, renderer.get_canvas_width_height()[1] - y if renderer.flipy() else y
            elif scale != 1:
                for place in _TRANSFORMS[name]:
                    values[place] += Affine2D().scale(scale)
            if scale != 1:
                _scale_clip(context, scale)
            getattr(renderer, name)(context, *values, **named)
            context.restore()


def _scale_clip(context: Any, scale: float) -> None:
    """Scale the rectangle and the path that a graphics context clips to."""
    if (rectangle := context.get_clip_rectangle()) is not None:
        context.set_clip_rectangle(TransformedBbox(rectangle, Affine2D().scale(scale)))
    path, transform = context.get_clip_path()
    if path is not None:
        context.set_clip_path(TransformedPath(path, transform + Affine2D().scale(scale)))
