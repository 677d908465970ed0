"""The tables about one finished cell: accuracy by class, and the classes that are confused most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.report.tables.table import Table, difference, number, word

if TYPE_CHECKING:
    from orchestrator.models.inspection import SplitPredictions

_PAIRS = 40


def class_table(found: SplitPredictions, names: tuple[str, ...]) -> Table:
    """Class by class: images, accuracy, gain over the frozen backbone, and what it is most often taken for."""
    counts_CC = found.confusion(len(names))
    rows = []
    for i, name in enumerate(names):
        total = int(counts_CC[i].sum())
        if not total:
            continue
        right, before = int(counts_CC[i, i]), int(((found.labels == i) & (found.frozen == i)).sum())
        wrong = counts_CC[i].copy()
        wrong[i] = 0
        taken = int(wrong.argmax())
        said = word(f"{names[taken]} ({wrong[taken]})" if wrong[taken] else "")
        shares = (number(100 * right / total), difference(100 * (right - before) / total))
        rows.append((word(name), said, number(total, "d"), *shares))
    return Table(
        name="classes",
        title=f"Accuracy by class, {found.dataset}",
        note="Per cent of the class's test images, the gain over the frozen backbone in points, and the class it is "
        "most often taken for, with the number of images.",
        header=("class", "taken for", "images", "accuracy", "gain"),
        rows=tuple(rows),
        words=2,
    )


def confused_table(found: SplitPredictions, names: tuple[str, ...], name: str) -> Table:
    """The pairs of classes that are confused most, most images first."""
    counts_CC = found.confusion(len(names))
    pairs = [
        (int(counts_CC[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts_CC[i, j]
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    rows = [
        (word(names[i]), word(names[j]), number(count, "d"), number(100 * count / int(counts_CC[i].sum())))
        for count, i, j in pairs[:_PAIRS]
    ]
    return Table(
        name=name,
        title=f"Most confused classes, {found.dataset}",
        note=f"The first {len(rows)} of {len(pairs)} pairs; per cent of the true class's images.",
        header=("true", "taken for", "images", "per cent"),
        rows=tuple(rows),
        words=2,
    )
