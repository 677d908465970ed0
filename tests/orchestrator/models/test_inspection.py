"""Inspection of a cell: confusion matrix, worst predictions, overlap of sources, and the images in its page."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.cells.trial import run_and_record
from orchestrator.models.inspection import SplitPredictions, inspect_cell, source_overlap
from orchestrator.report.page.cell_page import class_table, confused_table, data_uri
from orchestrator.store import Store
from tests.helpers.towers import GivenSources
from tests.orchestrator.conftest import World

FOUND = SplitPredictions(
    "pets",
    rows=np.array([0, 1, 2, 4, 5, 6]),
    labels=np.array([0, 0, 0, 1, 1, 2]),
    predicted=np.array([0, 1, 1, 1, 2, 2]),
    frozen=np.array([0, 0, 0, 0, 0, 2]),
    confidence=np.array([0.9, 0.6, 0.8, 0.7, 0.9, 0.5]),
    rivals={"lora": np.array([1, 0, 1, 1, 1, 0]), "zero": np.array([1, 1, 1, 0, 2, 1])},
    class_names=("cat", "dog", "owl"),
)


def test_the_confusion_matrix_and_the_most_confident_mistakes() -> None:
    assert FOUND.confusion().tolist() == [[1, 2, 0], [0, 1, 1], [0, 0, 1]]
    assert FOUND.mistakes() == [4, 2, 1]  # of confidence 0.9, 0.8 and 0.6


def test_images_that_no_other_method_classifies_correctly() -> None:
    assert FOUND.right_alone(["lora"]) == [0, 5]
    assert FOUND.right_alone(["zero"]) == [0, 3, 5]
    assert FOUND.right_alone(["lora", "zero"]) == [0, 5]
    assert FOUND.only_one_right("lora") == (2, 2)
    assert FOUND.only_one_right("zero") == (3, 0)


def test_the_class_table_names_confusions_and_gains() -> None:
    rows = [[entry.text for entry in row] for row in class_table(FOUND, "classes").rows]
    assert rows == [
        ["cat", "dog (2)", "3", "33.3", "\N{MINUS SIGN}66.7"],
        ["dog", "owl (1)", "2", "50.0", "+50.0"],
        ["owl", "", "1", "100.0", "0.0"],
    ]
    pairs = [[entry.text for entry in row] for row in confused_table(FOUND, "pairs").rows]
    assert pairs == [["cat", "dog", "2", "66.7"], ["dog", "owl", "1", "50.0"]]


def test_stored_predictions_are_those_of_the_kept_model(world: World) -> None:
    """A result of an older version has no predictions; then the model that was kept with it predicts again."""
    store, loaded = Store(world.settings.store_url), ArtifactCache(world.settings)
    cells = [world.pick(method) for method in ("bolt", "zero_shot")]
    for cell in cells:
        if cell.id not in store.result_ids():
            assert run_and_record(cell, world.settings).kind == "finished"
    result = store.read_result(cells[0].id)
    found = inspect_cell(result, loaded)
    again = inspect_cell(replace(result, predictions=None), loaded)
    assert (found.how, again.how) == ("stored", "kept")
    assert cells[1].id in [rival.cell.id for rival in found.rivals]
    (split,), (repeated,) = found.splits, again.splits
    assert len(split.mistakes()) == result.evaluations[0].total - result.evaluations[0].correct
    np.testing.assert_array_equal(split.rivals[cells[1].id], split.frozen)
    for name in ("rows", "labels", "predicted", "frozen"):
        np.testing.assert_array_equal(getattr(split, name), getattr(repeated, name))
    np.testing.assert_allclose(split.confidence, repeated.confidence, atol=0.5 / 255 + 1e-6)
    assert found.coefficients.keys() == again.coefficients.keys() != set()
    assert found.overlap.values.shape == (len(found.overlap.sources),) * 2


def spans(columns: dict[str, Tensor]) -> GivenSources:
    """Return sources whose leading directions are these columns."""
    return GivenSources({name: {"w": c * torch.arange(c.shape[1], 0, -1.0) @ c.T} for name, c in columns.items()})


def test_overlap_is_one_for_equal_spans_and_zero_for_orthogonal_ones() -> None:
    eye = torch.eye(6)
    turn = torch.linalg.qr(torch.tensor([[1.0, 2.0], [3.0, -1.0]])).Q
    sources = spans({"a": eye[:, :2], "turned": eye[:, :2] @ turn, "other": eye[:, 2:4], "half": eye[:, [1, 4]]})
    found = source_overlap(sources, ["w"], 2)
    expected = [[1, 1, 0, 0.5], [1, 1, 0, 0.5], [0, 0, 1, 0], [0.5, 0.5, 0, 1]]
    np.testing.assert_allclose(found.values, np.array(expected), atol=1e-6)
    assert found.sources == ("a", "turned", "other", "half")
    assert found.random == pytest.approx(2 / 6)  # 2 directions in 6 dimensions


def test_overlap_with_a_source_of_fewer_directions_is_a_share_of_these() -> None:
    eye = torch.eye(6)
    sources = spans({"a": eye[:, :2], "one": eye[:, :1], "not fine-tuned": eye[:, :0]})
    expected = [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(source_overlap(sources, ["w"], 2).values, np.array(expected), atol=1e-6)


@pytest.mark.parametrize(("side", "form"), [(32, "png"), (224, "jpeg")])
def test_images_are_embedded_in_the_page(side: int, form: str) -> None:
    assert data_uri(np.zeros((3, side, side), dtype=np.uint8)).startswith(f"data:image/{form};base64,")
