"""The page about one finished cell: its classes, confusions, worst mistakes, coefficients and sources."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from orchestrator.report.figures.cell import coefficient_spectra, confusion_matrix, overlap_map
from orchestrator.report.figures.drawing import FigureFile, inline_svg
from orchestrator.report.page.report_page import Shown, shown
from orchestrator.report.tables.cell import class_table, confused_table
from orchestrator.report.tables.variants import setting_words
from orchestrator.report.text import signed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orchestrator.models.inspection import CellInspection

WORST = 24
_PAIRS = 40

ImageOf = Callable[[str, int], "NDArray[np.uint8]"]
"""Dataset and place in its test split -> the image as the tower sees it, (3, S, S)."""


@dataclass(frozen=True)
class Mistake:
    """A wrong image, what it is and what it is taken for, with the model's probabilities in per cent."""

    picture: str
    truth: str
    said: str
    of_truth: float
    sure: float


@dataclass(frozen=True)
class SplitView:
    """What the page shows of one test split."""

    dataset: str
    correct: int
    frozen: int
    total: int
    recorded: tuple[int, int]
    classes: Shown
    pairs: Shown | None
    confusion: FigureFile | None
    mistakes: list[Mistake]


def render_inside(inside: CellInspection, image_of: ImageOf) -> str:
    """The whole page, which needs no network and no other file."""
    folder = files("orchestrator.report.page") / "templates"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters.update(svg=lambda figure: Markup(inline_svg(figure)), signed=signed, setting=setting_words)
    template = environment.from_string((folder / "cell.html.j2").read_text(encoding="utf-8"))
    cell = inside.result.cell
    return template.render(
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        cell=cell,
        result=inside.result,
        inside=inside,
        settings=sorted(cell.method.settings_dict().items()),
        splits=[_split(inside, i, image_of) for i in range(len(inside.predicted))],
        spectra=coefficient_spectra(inside.coefficients),
        overlap=overlap_map(inside.overlap, inside.sources, inside.directions),
    )


def _split(inside: CellInspection, index: int, image_of: ImageOf) -> SplitView:
    found, names = inside.predicted[index], inside.class_names
    recorded = inside.result.evaluations[index]
    pairs = confused_table(found, names, f"confused-{index}")
    return SplitView(
        dataset=found.dataset,
        correct=int((found.predicted == found.labels).sum()),
        frozen=int((found.frozen == found.labels).sum()),
        total=len(found.labels),
        recorded=(recorded.correct, recorded.total),
        classes=shown(class_table(found, names), element_id=f"classes-{index}"),
        pairs=shown(pairs, element_id=f"confused-{index}") if pairs.rows else None,
        confusion=confusion_matrix(found.confusion(len(names)), names, found.dataset),
        mistakes=[
            Mistake(
                picture=picture_uri(image_of(found.dataset, place)),
                truth=names[found.labels[place]],
                said=names[found.predicted[place]],
                of_truth=100 * float(found.truth_probability[place]),
                sure=100 * float(found.confidence[place]),
            )
            for place in found.worst(WORST)
        ],
    )


def picture_uri(pixels_3SS: NDArray[np.uint8]) -> str:
    """An image as a data URI: a JPEG where it is large enough for one to be smaller and not to show."""
    from PIL import Image

    image, stream = Image.fromarray(pixels_3SS.transpose(1, 2, 0)), io.BytesIO()
    form = "PNG" if image.width <= 64 else "JPEG"
    image.save(stream, form, quality=88)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
