"""The tables about one finished cell: accuracy by class, and the classes that are confused most.

Shape legend: C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.report.tables.table import Entry, Table, difference, number

if TYPE_CHECKING:
    from orchestrator.models.inspection import SplitPredictions

_MOST_PAIRS = 40


def class_table(predictions: SplitPredictions, class_names: tuple[str, ...], name: str) -> Table:
    """For each class: images, accuracy, gain over the frozen backbone, and the class it is most often taken for."""
    counts_CC = predictions.confusion(len(class_names))
    rows = []
    for i, class_name in enumerate(class_names):
        total = int(counts_CC[i].sum())
        if not total:
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
        "Per cent of the class's test images, the gain over the frozen backbone in points, and the class it is "
        "most often taken for, with the number of images."
    )
    header = ("class", "taken for", "images", "accuracy", "gain")
    return Table(name, title, note, header, tuple(rows), text_columns=2)


def confused_table(predictions: SplitPredictions, class_names: tuple[str, ...], name: str) -> Table:
    """The pairs of classes that are confused most, those with most images first."""
    counts_CC = predictions.confusion(len(class_names))
    indices = range(len(class_names))
    pairs = [(i, j) for i in indices for j in indices if i != j and counts_CC[i, j]]
    pairs.sort(key=lambda pair: -counts_CC[pair])
    rows = []
    for i, j in pairs[:_MOST_PAIRS]:
        share = 100 * int(counts_CC[i, j]) / int(counts_CC[i].sum())
        numbers = (number(int(counts_CC[i, j]), "d"), number(share, ".1f"))
        rows.append((Entry(class_names[i]), Entry(class_names[j]), *numbers))
    title = f"Most confused classes, {predictions.dataset}"
    note = f"The first {len(rows)} of {len(pairs)} pairs; per cent of the true class's images."
    header = ("true", "taken for", "images", "per cent")
    return Table(name, title, note, header, tuple(rows), text_columns=2)
