"""A figure that is drawn once and written in three formats: the files are those that matplotlib writes itself."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from orchestrator.report.figures.drawing import canvas, heat_map, legend_below
from orchestrator.report.figures.recording import Recording


def draw_lines(figure: Any) -> None:
    axes = figure.add_subplot()
    axes.plot([1, 2, 3], [3.0, 1.0, 2.0], marker="o", linestyle="--", label="a line")
    axes.fill_between([1, 2, 3], [2.5, 0.5, 1.5], [3.5, 1.5, 2.5], alpha=0.2)
    axes.errorbar([2], [2.0], yerr=[0.5], marker="s")
    axes.set_ylim(0.8, 3.2)  # cuts the band
    axes.set_ylabel("written upwards")
    legend_below(figure, axes, columns=1)


def draw_radar(figure: Any) -> None:
    axes = figure.add_subplot(projection="polar")
    axes.plot([0.0, 2.0, 4.0, 0.0], [1.0, 2.0, 3.0, 1.0], marker="^")
    axes.set_ylim(0, 2.5)  # cuts a corner


def draw_dots(figure: Any) -> None:
    axes = figure.add_subplot()
    axes.scatter([0, 1, 2], [0, 1, 2], s=[10, 40, 90], c=["#0072b2", "#d55e00", "#009e73"])
    axes.hlines([0.5], 0, 2, color="#d4d9df", alpha=0.6)


def draw_map(figure: Any) -> None:
    axes = figure.add_subplot()
    names = {"rows": ["a", "b"], "columns": ["one name", "another"]}
    heat_map(axes, [[0, 1], [2, 3]], colours=("#ffffff", "#3b2a7d"), low=0, high=3, edge=0.6, rotation=40, **names)
    figure.colorbar(axes.collections[0], ax=axes)  # has pixels in every format


@pytest.mark.parametrize("draw", [draw_lines, draw_radar, draw_dots, draw_map])
def test_a_recording_saves_what_matplotlib_saves(draw: Callable[[Any], None]) -> None:
    def saved(of: Callable[[Any], Any], form: str, **options: Any) -> bytes:
        with canvas(4.0, 3.0) as figure:
            draw(figure)
            file = io.BytesIO()
            of(figure)(file, format=form, **options)
        return file.getvalue()

    def both(form: str, **options: Any) -> tuple[bytes, bytes]:
        return saved(lambda figure: figure.savefig, form, **options), saved(
            lambda figure: Recording(figure).save, form, **options
        )

    expected, svg = both("svg", transparent=True, metadata={"Date": None})
    assert svg == expected

    expected, png = both("png", dpi=160, facecolor="white")
    difference = np.abs(_pixels(expected) - _pixels(png)).max(axis=2)
    assert (difference > 64).mean() < 0.01  # texts may move by a pixel
    assert (_pixels(png) < 128).any()

    expected, pdf = both("pdf", transparent=True)
    operators, numbers = _operations(pdf)
    expected_operators, expected_numbers = _operations(expected)
    assert operators == expected_operators
    np.testing.assert_allclose(numbers, expected_numbers, atol=0.3)  # points, of the places of texts


def test_one_recording_is_saved_twice() -> None:
    with canvas(4.0, 3.0) as figure:
        draw_lines(figure)
        recording = Recording(figure)
        files = [io.BytesIO(), io.BytesIO()]
        for file in files:
            recording.save(file, format="png", dpi=80)
    assert files[0].getvalue() == files[1].getvalue()


def _pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int64)


def _operations(pdf: bytes) -> tuple[list[bytes], list[float]]:
    """The drawing operators of the page of a PDF, and their numbers."""
    page = next(
        content
        for stream in re.findall(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
        if b" Tf" in (content := zlib.decompress(stream)) or b" re\n" in content
    )
    number = re.compile(rb"-?\d+\.?\d*")
    return number.sub(b"#", page).split(), [float(value) for value in number.findall(page)]
