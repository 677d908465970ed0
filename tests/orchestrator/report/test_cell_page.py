"""The page of a cell: the methods beside it, its example images, and where its run is."""

import re
from dataclasses import replace

import numpy as np

from orchestrator.models.inspection import CellInspection, SplitPredictions
from orchestrator.report.page.cell_page import render_cell_page
from orchestrator.store.results import Evaluation
from tests.helpers.small_results import cell, result

IMAGES = 40


def scored(method: str, predicted_N: np.ndarray, labels_N: np.ndarray):  # type: ignore[no-untyped-def]
    """Return a result with the accuracy of these predictions."""
    correct = int((predicted_N == labels_N).sum())
    evaluation = Evaluation("ants", 100 * correct / IMAGES, correct, IMAGES, 25.0, ((correct, IMAGES),), None, None)
    return replace(result(cell(method, k=4, seed=1), 50.0), evaluations=(evaluation,))


def inspection(*, with_rivals: bool = True, with_predictions: bool = True) -> CellInspection:
    """Return a cell of BOLT that is wrong for images 0 to 9 and right alone for images 30 to 33."""
    labels_N = np.zeros(IMAGES, dtype=np.int64)
    own_N, lora_N, zero_N = labels_N.copy(), labels_N.copy(), np.ones_like(labels_N)
    own_N[:10] = 1
    lora_N[30:34] = 2
    own = scored("bolt", own_N, labels_N)
    rivals = [scored("lora", lora_N, labels_N), scored("zero_shot", zero_N, labels_N)] if with_rivals else []
    predicted = {one.cell.id: p for one, p in zip(rivals, (lora_N, zero_N), strict=False)} if with_predictions else {}
    split = SplitPredictions(
        "ants", np.arange(IMAGES) + 100, labels_N, own_N, zero_N, np.linspace(0.4, 0.9, IMAGES), predicted,
        ("cat", "dog", "owl"),
    )  # fmt: skip
    labels = {one.cell.id: one.cell.method.name for one in (own, *rivals)}
    return CellInspection(own, "stored", (), (split,), tuple(rivals), labels, {}, None)


def page_of(found: CellInspection) -> tuple[str, list[int]]:
    """Return the page, and the rows of the images that it shows, in order."""
    rows: list[int] = []

    def image_of(dataset: str, row: int) -> np.ndarray:
        rows.append(row)
        return np.zeros((3, 8, 8), dtype=np.uint8)

    return render_cell_page(found, image_of), rows


def lines_of(page: str) -> list[list[str]]:
    """Return the texts of the table of methods, line by line."""
    body = re.search(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert body is not None
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line, re.DOTALL) for line in body[1].split("</tr>")[:-1]]
    return [[re.sub(r"<.*?>", "", text) for text in line] for line in cells]


def test_methods_are_compared_on_the_same_images() -> None:
    page, _ = page_of(inspection())
    lines = lines_of(page)
    assert [line[:3] for line in lines] == [
        ["LoRA", "90.0", "+15.0"],
        ["BOLT", "75.0", ""],
        ["Zero-shot CLIP", "0.0", "\N{MINUS SIGN}75.0"],
    ]
    assert [line[3:5] for line in lines] == [["4", "10"], ["", ""], ["30", "0"]]


def test_images_are_sorted_by_confidence_and_mistakes_are_shown_after_what_only_this_method_gets_right() -> None:
    page, rows = page_of(inspection())
    assert rows == [*range(133, 129, -1), *range(109, 99, -1)]
    assert page.index("Right only with BOLT") < page.index("Most confident mistakes")
    assert page.count("others: owl (1), dog (1)") == 4
    assert page.count("1 of 2 others right") == 10


def test_without_predictions_of_rivals_only_accuracies_are_compared() -> None:
    page, rows = page_of(inspection(with_predictions=False))
    assert [line[:3] for line in lines_of(page)][1] == ["BOLT", "75.0", ""]
    assert "Right only" not in page
    assert rows == list(range(109, 99, -1))
    alone, _ = page_of(inspection(with_rivals=False))
    assert "All methods" not in alone


def test_the_page_says_how_to_find_its_run_in_mlflow() -> None:
    found = inspection()
    page, _ = page_of(found)
    assert f"tags.cell = '{found.result.cell.id}'" in page
    assert "http" not in page
