"""The HTML page about one finished cell: its classes, confusions, worst mistakes, coefficients and sources."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.report.figures.cell import coefficient_spectra, confusion_matrix, overlap_map
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.page.rendering import render
from orchestrator.report.tables.cell import class_table, confused_table
from orchestrator.report.tables.table import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orchestrator.models.inspection import CellInspection

MOST_MISTAKES = 24

ImageOf = Callable[[str, int], "NDArray[np.uint8]"]
"""``(dataset, index) -> image``: an image of the test split as the tower sees it, (3, S, S)."""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction: the image as a data URI, both classes, and their probabilities in per cent."""

    image: str
    true: str
    predicted: str
    true_probability: float
    predicted_probability: float


@dataclass(frozen=True)
class SplitView:
    """What the page shows of one test split. ``recorded`` is the (correct, total) of the cell's result."""

    dataset: str
    correct: int
    correct_zero_shot: int
    total: int
    recorded: tuple[int, int]
    classes: Table
    pairs: Table
    confusion: FigureFile | None
    mistakes: list[Mistake]


def render_inside(inside: CellInspection, image_of: ImageOf) -> str:
    """The whole page, which needs no network and no other file."""
    cell = inside.result.cell
    return render(
        "cell.html.j2",
        cell=cell,
        result=inside.result,
        inside=inside,
        settings=sorted(cell.method.settings_dict().items()),
        splits=[_split(inside, i, image_of) for i in range(len(inside.predicted))],
        spectra=coefficient_spectra(inside.coefficients),
        overlap=overlap_map(inside.overlap, inside.sources, inside.directions),
    )


def _split(inside: CellInspection, index: int, image_of: ImageOf) -> SplitView:
    predictions, names = inside.predicted[index], inside.class_names
    recorded = inside.result.evaluations[index]
    return SplitView(
        dataset=predictions.dataset,
        correct=int((predictions.predicted == predictions.labels).sum()),
        correct_zero_shot=int((predictions.frozen == predictions.labels).sum()),
        total=len(predictions.labels),
        recorded=(recorded.correct, recorded.total),
        classes=class_table(predictions, names, f"classes-{index}"),
        pairs=confused_table(predictions, names, f"confused-{index}"),
        confusion=confusion_matrix(predictions.confusion(len(names)), names, predictions.dataset),
        mistakes=[
            Mistake(
                image=data_uri(image_of(predictions.dataset, i)),
                true=names[predictions.labels[i]],
                predicted=names[predictions.predicted[i]],
                true_probability=100 * float(predictions.truth_probability[i]),
                predicted_probability=100 * float(predictions.confidence[i]),
            )
            for i in predictions.worst(MOST_MISTAKES)
        ],
    )


def data_uri(pixels_3SS: NDArray[np.uint8]) -> str:
    """An image as a data URI: PNG up to 64 pixels, and JPEG above, where it is smaller and its losses do not show."""
    from PIL import Image

    image, stream = Image.fromarray(pixels_3SS.transpose(1, 2, 0)), io.BytesIO()
    form = "PNG" if image.width <= 64 else "JPEG"
    image.save(stream, form, quality=88)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
