"""Writes names of methods beside points and lines without overlaps, so that a figure needs no legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.report.figures.drawing import INK

_Points = Sequence[tuple[float, float]]
_GAP = 6.5
"""Distance of a name from its point, in points (1/72 inch)."""
_STEPS = 9
"""A name may move up or down by fewer than this many steps. A step is 0.6 of the name's height."""


@dataclass(frozen=True)
class PointLabel:
    """A name and the point that it belongs to, in the units of the axes."""

    text: str
    x: float
    y: float
    colour: str


def label_points(axes: Any, labels: Sequence[PointLabel], *, only_right: bool = False) -> None:
    """Write every name at the nearest free position beside its point.

    A thin line joins a name to its point if the two are far apart. The limits of the axes must be final, because this
    function fixes the layout of the figure. ``only_right`` puts all names to the right of their points, as at the ends
    of lines.
    """
    from matplotlib.layout_engine import PlaceHolderLayoutEngine

    figure = axes.figure
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):  # only for the first axes of a figure
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    points = [axes.transData.transform((label.x, label.y)) for label in labels]
    texts = [
        axes.annotate(
            label.text, (label.x, label.y), xytext=(0, 0), textcoords="offset points", va="center", fontsize=8,
            color=INK, annotation_clip=False, zorder=6,
        )
        for label in labels
    ]  # fmt: skip
    sizes = [(extent.width, extent.height) for extent in (text.get_window_extent(renderer) for text in texts)]
    gap = _GAP * scale
    boxes = _stacked(points, sizes, gap) if only_right else _nearest(points, sizes, gap, figure.bbox.width)
    for label, (x, y), text, box in zip(labels, points, texts, boxes, strict=True):
        middle = (box.low + box.high) / 2
        text.set_position(((box.left - x) / scale, (middle - y) / scale))
        if box.distance > (box.high - box.low) * 0.8:
            end = (box.left - 2 if box.left > x else box.right + 2, middle)
            line = axes.transData.inverted().transform([(x, y), end])
            axes.plot(line[:, 0], line[:, 1], color=label.colour, linewidth=0.6, zorder=1.5, clip_on=False)


@dataclass(frozen=True)
class _Box:
    """A rectangle in pixels. ``distance``: how far it is from the best position of the name."""

    left: float
    low: float
    right: float
    high: float
    distance: float = 0.0

    def overlap(self, other: _Box) -> float:
        """Return the area that both rectangles cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(width, 0.0) * max(height, 0.0)


def _nearest(points: _Points, sizes: _Points, gap: float, width: float) -> list[_Box]:
    """Return a rectangle for the name of each point. The highest points choose first.

    Each point takes the place where the name covers the smallest area of points and earlier names. If places are equal,
    it takes the nearest of them. A place outside the width of the figure is taken only if there is no other.
    """
    taken = [_Box(x - 7, y - 7, x + 7, y + 7) for x, y in points]
    boxes: dict[int, _Box] = {}
    for i in sorted(range(len(points)), key=lambda i: -points[i][1]):
        places = list(_places(*points[i], *sizes[i], gap))
        inside = [place for place in places if place.left >= 0 and place.right <= width]
        boxes[i] = min(inside or places, key=lambda place: (sum(map(place.overlap, taken)), place.distance))
        taken.append(boxes[i])
    return [boxes[i] for i in range(len(points))]


def _stacked(points: _Points, sizes: _Points, gap: float) -> list[_Box]:
    """Return rectangles to the right of the points, moved up and down until none covers another."""
    middles = [y for _, y in points]
    order = sorted(range(len(points)), key=middles.__getitem__)
    for _ in range(200):
        for below, above in pairwise(order):
            if (lacking := sizes[below][1] - (middles[above] - middles[below])) > 0:
                middles[below] -= lacking / 2
                middles[above] += lacking / 2
    boxes = []
    for (x, y), (width, height), middle in zip(points, sizes, middles, strict=True):
        left = x + gap * 1.6
        boxes.append(_Box(left, middle - height / 2, left + width, middle + height / 2, abs(middle - y)))
    return boxes


def _places(x: float, y: float, width: float, height: float, gap: float) -> Iterator[_Box]:
    """Yield the rectangles beside the point (x, y) in which a name of this size may be written, in pixels."""
    for step in (0, *(sign * n for n in range(1, _STEPS) for sign in (1, -1))):
        move = step * height * 0.6
        low, away = y - height / 2 + move, abs(move)
        yield _Box(x + gap, low, x + gap + width, low + height, away)
        yield _Box(x - gap - width, low, x - gap, low + height, away + 0.3 * height)
        if abs(step) >= 2:
            yield _Box(x - width / 2, low, x + width / 2, low + height, away)
