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

    from orchestrator.models.inspection import CellInspection, SplitPredictions
    from orchestrator.store.results import Evaluation

MOST_MISTAKES = 24

ImageOf = Callable[[str, int], "NDArray[np.uint8]"]
"""``(dataset, index) -> image``: an image of the test split as the tower sees it, (3, S, S)."""


@dataclass(frozen=True)
class SplitView:
    """What the page shows of one test split. ``recorded`` is its evaluation in the cell's result."""

    predictions: SplitPredictions
    recorded: Evaluation
    classes: Table
    pairs: Table
    confusion: FigureFile | None


def render_inside(inside: CellInspection, image_of: ImageOf) -> str:
    """The whole page, which needs no network and no other file."""
    cell = inside.result.cell
    return render(
        "cell.html.j2",
        cell=cell,
        result=inside.result,
        inside=inside,
        settings=sorted(cell.method.settings_dict().items()),
        class_names=inside.class_names,
        splits=[_split(inside, i) for i in range(len(inside.predicted))],
        most_mistakes=MOST_MISTAKES,
        image=lambda dataset, index: data_uri(image_of(dataset, index)),
        spectra=coefficient_spectra(inside.coefficients),
        overlap=overlap_map(inside.overlap, inside.sources, inside.directions),
    )


def _split(inside: CellInspection, index: int) -> SplitView:
    predictions, names = inside.predicted[index], inside.class_names
    return SplitView(
        predictions=predictions,
        recorded=inside.result.evaluations[index],
        classes=class_table(predictions, names, f"classes-{index}"),
        pairs=confused_table(predictions, names, f"confused-{index}"),
        confusion=confusion_matrix(predictions.confusion(len(names)), names, predictions.dataset),
    )


def data_uri(pixels_3SS: NDArray[np.uint8]) -> str:
    """An image as a data URI: PNG up to 64 pixels, and JPEG above, where it is smaller and its losses do not show."""
    from PIL import Image

    image, stream = Image.fromarray(pixels_3SS.transpose(1, 2, 0)), io.BytesIO()
    form = "PNG" if image.width <= 64 else "JPEG"
    image.save(stream, form, quality=88)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
