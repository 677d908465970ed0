"""The HTML page about one finished cell: all methods in its place, its mistakes, classes, training and sources."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.analysis.display_names import display_names, summaries
from orchestrator.report.figures.cell import coefficient_spectra, confusion_matrix, overlap_map, training_curves
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.notation import digits_of
from orchestrator.report.page.rendering import render
from orchestrator.report.styles import styles_of
from orchestrator.report.tables.cell import class_table, confused_table
from orchestrator.report.tables.table import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orchestrator.models.inspection import CellInspection, SplitPredictions
    from orchestrator.store.results import Evaluation, Result

MOST_MISTAKES = 24
MOST_RIGHT_ALONE = 12

ImageOf = Callable[[str, int], "NDArray[np.uint8]"]
"""``(dataset, row) -> image``: an image of the test split as the tower sees it, (3, S, S)."""


@dataclass(frozen=True)
class PageLinks:
    """Addresses of other pages, as they stand in ``href``.

    Attributes:
        reports: grid -> its report, of the grids that have the cell.
        cells: cell id -> its page, of the cells that have one.
    """

    reports: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A test image with a sentence about it. ``confidence`` is in per cent."""

    row: int
    truth: str
    predicted: str
    confidence: float
    others: str


@dataclass(frozen=True)
class SplitView:
    """What the page shows of one test split.

    Attributes:
        recorded: the evaluation in the cell's result.
        scored: the cell's result and those of its rivals with their evaluations, the most accurate first.
        compared: number of methods that ``right_alone`` compares with; 0 if their predictions are not stored.
        right_alone, right_alone_total: images that no other method classifies correctly, and how many there are.
        mistakes, mistakes_total: wrong predictions, the most confident first, and how many there are.
    """

    predictions: SplitPredictions
    recorded: Evaluation
    digits: int
    scored: Sequence[tuple[Result, Evaluation]]
    compared: int
    right_alone: Sequence[Example]
    right_alone_total: int
    mistakes: Sequence[Example]
    mistakes_total: int
    classes: Table
    pairs: Table
    confusion: FigureFile | None


def render_cell_page(found: CellInspection, image_of: ImageOf, links: PageLinks | None = None) -> str:
    """The whole page, which needs no network and no other file."""
    cell = found.result.cell
    methods = {found.labels[result.cell.id]: result.cell.method.name for result in (found.result, *found.rivals)}
    names = display_names(methods)
    return render(
        "cell.html.j2",
        cell=cell,
        name=names[found.labels[cell.id]],
        names=names,
        styles=styles_of(methods),
        summaries=summaries(methods),
        result=found.result,
        found=found,
        settings=sorted(cell.method.settings_dict().items()),
        splits=[_split(found, i) for i in range(len(found.splits))],
        image=lambda dataset, row: data_uri(image_of(dataset, row)),
        curves=training_curves(found.result.curves),
        spectra=coefficient_spectra(found.coefficients),
        overlap=overlap_map(found.overlap),
        links=links or PageLinks(),
    )


def _split(found: CellInspection, index: int) -> SplitView:
    predictions, classes, recorded = found.splits[index], found.class_names, found.result.evaluations[index]
    method = found.result.cell.method.name
    others = [r.cell.id for r in found.rivals if r.cell.method.name != method and r.cell.id in predictions.rivals]
    scored = [(result, result.evaluations[index]) for result in (found.result, *found.rivals)]
    alone, mistakes = predictions.right_alone(others) if others else [], predictions.mistakes()
    return SplitView(
        predictions=predictions,
        recorded=recorded,
        digits=digits_of(recorded.total),
        scored=sorted(scored, key=lambda pair: -pair[1].accuracy),
        compared=len(others),
        right_alone=[_example(predictions, i, classes, others) for i in alone[:MOST_RIGHT_ALONE]],
        right_alone_total=len(alone),
        mistakes=[_example(predictions, i, classes, others) for i in mistakes[:MOST_MISTAKES]],
        mistakes_total=len(mistakes),
        classes=class_table(predictions, classes, f"classes-{index}"),
        pairs=confused_table(predictions, classes, f"confused-{index}"),
        confusion=confusion_matrix(predictions.confusion(len(classes)), classes, predictions.dataset),
    )


def _example(predictions: SplitPredictions, i: int, classes: Sequence[str], others: Sequence[str]) -> Example:
    """Image ``i`` of the predictions, with what the rivals ``others`` predict for it."""
    votes = Counter(int(predictions.rivals[id_][i]) for id_ in others)
    right = votes.pop(int(predictions.labels[i]), 0)
    text = f"{right} of {len(others)} others right" if others else ""
    if votes and not right:
        text = "others: " + ", ".join(f"{classes[c]} ({count})" for c, count in votes.most_common(2))
    return Example(
        row=int(predictions.rows[i]),
        truth=classes[predictions.labels[i]],
        predicted=classes[predictions.predicted[i]],
        confidence=100 * float(predictions.confidence[i]),
        others=text,
    )


def data_uri(pixels_3SS: NDArray[np.uint8]) -> str:
    """An image as a data URI: PNG up to 64 pixels wide; above that JPEG, which is smaller and looks the same."""
    from PIL import Image

    image, stream = Image.fromarray(pixels_3SS.transpose(1, 2, 0)), io.BytesIO()
    form = "PNG" if image.width <= 64 else "JPEG"
    image.save(stream, form, quality=88)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
