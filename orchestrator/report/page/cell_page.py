"""The HTML page about one finished cell: methods on the same images, mistakes, classes, training and sources."""

import base64
import io
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.analysis.display_names import display_names, summaries
from orchestrator.models.inspection import CellInspection, SplitPredictions
from orchestrator.report.figures.cell import coefficient_spectra, confusion_matrix, overlap_map, training_curves
from orchestrator.report.page.rendering import render
from orchestrator.report.styles import digits_of, styles_of
from orchestrator.report.tables.table import Entry, Table, difference, number


def render_cell_page(found: CellInspection, image_of: Callable[[str, int], NDArray[np.uint8]]) -> str:
    """Return the whole page.

    ``image_of(dataset, row)`` is an image of a test split as the tower sees it, uint8 (3, S, S).
    """
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
        example=_example,
        image=lambda dataset, row: data_uri(image_of(dataset, row)),
        curves=training_curves(found.result.curves),
        spectra=coefficient_spectra(found.coefficients),
        overlap=overlap_map(found.overlap),
    )


def _split(found: CellInspection, index: int) -> dict[str, Any]:
    """Return what the page shows of one test split."""
    predictions, recorded = found.splits[index], found.result.evaluations[index]
    method = found.result.cell.method.name
    others = [r.cell.id for r in found.rivals if r.cell.method.name != method and r.cell.id in predictions.rivals]
    scored = [(result, result.evaluations[index]) for result in (found.result, *found.rivals)]
    return {
        "predictions": predictions,
        "recorded": recorded,  # as in the cell's result
        "digits": digits_of(recorded.total),
        "scored": sorted(scored, key=lambda pair: -pair[1].accuracy),  # results with their evaluations
        "others": others,  # ids of the cells that the examples are compared with
        "right_alone": predictions.right_alone(others) if others else [],
        "mistakes": predictions.mistakes(),
        "classes": class_table(predictions, f"classes-{index}"),
        "pairs": confused_table(predictions, f"confused-{index}"),
        "confusion": confusion_matrix(predictions.confusion(), predictions.class_names, predictions.dataset),
    }


def _example(predictions: SplitPredictions, i: int, others: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows beside image ``i``: true class, prediction, and what other cells predicted.

    ``others``: the ids of these cells.
    """
    classes = predictions.class_names
    votes = Counter(int(predictions.rivals[id_][i]) for id_ in others)
    right = votes.pop(int(predictions.labels[i]), 0)
    text = f"{right} of {len(others)} others right" if others else ""
    if votes and not right:
        text = "others: " + ", ".join(f"{classes[c]} ({count})" for c, count in votes.most_common(2))
    return {
        "row": int(predictions.rows[i]),
        "truth": classes[predictions.labels[i]],
        "predicted": classes[predictions.predicted[i]],
        "per_cent": 100 * float(predictions.confidence[i]),
        "others": text,
    }


def data_uri(pixels_3SS: NDArray[np.uint8]) -> str:
    """Return an image as a data URI: a PNG if it is at most 64 pixels wide. A wider image is a JPEG, to save bytes."""
    image, stream = Image.fromarray(pixels_3SS.transpose(1, 2, 0)), io.BytesIO()
    form = "PNG" if image.width <= 64 else "JPEG"
    image.save(stream, form, quality=88)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def class_table(predictions: SplitPredictions, name: str) -> Table:
    """Make a table with the images, accuracy, gain and most frequent wrong prediction of each class."""
    counts_CC, class_names = predictions.confusion(), predictions.class_names
    rows = []
    for i, class_name in enumerate(class_names):
        if not (total := int(counts_CC[i].sum())):
            continue
        correct = int(counts_CC[i, i])
        correct_zero_shot = int(((predictions.labels == i) & (predictions.frozen == i)).sum())
        wrong_C = counts_CC[i].copy()
        wrong_C[i] = 0
        other = int(wrong_C.argmax())
        taken_for = Entry(f"{class_names[other]} ({wrong_C[other]})" if wrong_C[other] else "")
        # one decimal, because a class has few test images
        accuracy = number(100 * correct / total, ".1f")
        gain = difference(100 * (correct - correct_zero_shot) / total, digits=1)
        rows.append((Entry(class_name), taken_for, number(total, "d"), accuracy, gain))
    title = f"Accuracy by class, {predictions.dataset}"
    note = (
        "Accuracy on the class's test images in per cent, its gain over the frozen backbone in points, and the class "
        "that these images are most often taken for, with the number of such images."
    )
    return Table(name, title, note, ("class", "taken for", "images", "accuracy", "gain"), tuple(rows), text_columns=2)


def confused_table(predictions: SplitPredictions, name: str) -> Table:
    """Make a table of the pairs of classes that are confused most, by falling numbers of images."""
    counts_CC, class_names = predictions.confusion(), predictions.class_names
    indices = range(len(class_names))
    pairs = [(i, j) for i in indices for j in indices if i != j and counts_CC[i, j]]
    pairs.sort(key=lambda pair: -counts_CC[pair])
    rows = []
    for i, j in pairs[:40]:
        share = 100 * int(counts_CC[i, j]) / int(counts_CC[i].sum())
        numbers = (number(int(counts_CC[i, j]), "d"), number(share, ".1f"))
        rows.append((Entry(class_names[i]), Entry(class_names[j]), *numbers))
    title = f"Most confused classes, {predictions.dataset}"
    note = f"The first {len(rows)} of {len(pairs)} pairs; per cent of the true class's images."
    return Table(name, title, note, ("true", "taken for", "images", "per cent"), tuple(rows), text_columns=2)
