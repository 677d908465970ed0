"""Stored predictions: their bytes, damaged files, and results without predictions."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.store import Store
from orchestrator.store.predictions import StoredPredictions, parse_predictions, predictions_content, predictions_file
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples

CELL = samples.cell(1)
RESULT, CONTENT = samples.predictions(samples.result(CELL))


def path_of(store: Store, cell_id: str = CELL.id) -> Path:
    return Path(store.files.root, "results", f"{cell_id}.npz")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one finished cell."""
    store = Store(tmp_path)
    store.write_result(RESULT, CONTENT)
    return store


def test_predictions_are_read_as_they_were_written(store: Store) -> None:
    (split,) = store.read_predictions([RESULT])[CELL.id]
    assert (split.labels.dtype, split.predicted.dtype, split.probability.dtype) == (np.uint16, np.uint16, np.uint8)
    assert int(split.correct.sum()) == RESULT.evaluations[0].correct
    assert split.rows is None
    with np.load(path_of(store)) as arrays:
        assert sorted(arrays) == ["digits/labels", "digits/predicted", "digits/probability"]
        np.testing.assert_array_equal(arrays["digits/predicted"], split.predicted)


def test_rows_of_a_part_of_a_split_are_kept() -> None:
    (whole,) = parse_predictions(CONTENT, RESULT.evaluations)
    rows = np.arange(200, dtype=np.uint32)[::-1]
    (part,) = parse_predictions(predictions_content([replace(whole, rows=rows)]), RESULT.evaluations)
    assert part.rows is not None
    np.testing.assert_array_equal(part.rows, rows)


def test_equal_predictions_give_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    assert samples.predictions(samples.result(CELL))[1] == CONTENT
    assert {entry.date_time for entry in zipfile.ZipFile(io.BytesIO(CONTENT)).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_predictions_are_written_before_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process ends between the two files, the cell is open, and its next run writes both."""
    store = Store(tmp_path)
    write = store.files.write

    def end_at_the_result(name: str, data: bytes) -> None:
        if name.endswith(".json"):
            raise KeyboardInterrupt
        write(name, data)

    with monkeypatch.context() as patch:
        patch.setattr(store.files, "write", end_at_the_result)
        with pytest.raises(KeyboardInterrupt):
            store.write_result(RESULT, CONTENT)
    assert path_of(store).read_bytes() == CONTENT
    assert Store(tmp_path).result_ids() == frozenset()
    assert Store(tmp_path).read_results([CELL.id]) == ([], [])
    store.write_result(RESULT, CONTENT)
    assert Store(tmp_path).read_results([CELL.id]) == ([RESULT], [])


DAMAGES: dict[str, bytes | None] = {
    "missing": None,
    "cut": CONTENT[:-9],
    "changed": CONTENT[:99] + bytes([CONTENT[99] ^ 1]) + CONTENT[100:],
}


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_result_with_damaged_predictions_is_set_aside(store: Store, damage: bytes | None, read_before: bool) -> None:
    if read_before:
        assert store.read_results([CELL.id]) == ([RESULT], [])
    path_of(store).unlink()
    if damage is not None:
        path_of(store).write_bytes(damage)
    assert store.read_results([CELL.id]) == ([], [CELL.id])
    assert store.result_ids() == frozenset()
    assert store.read_predictions([RESULT]) == {}
    store.write_result(RESULT, CONTENT)
    assert store.read_results([CELL.id]) == ([RESULT], [])
    assert list(store.read_predictions([RESULT])) == [CELL.id]


def test_a_result_of_a_later_version_is_not_set_aside(tmp_path: Path) -> None:
    """It was called damaged and renamed, by ``status``, too, and then measured again."""
    store, name = Store(tmp_path), f"results/{CELL.id}.json"
    store.files.write(name, samples.sealed({**json.loads(RESULT.to_json()), "format": 4, "new": 1}).encode())
    with pytest.raises(UserError, match="format 4, which a later version"):
        store.read_results([CELL.id])
    assert store.files.exists(name)


def test_a_result_of_format_2_is_read_as_one_without_predictions(tmp_path: Path) -> None:
    data, store = {**json.loads(RESULT.to_json()), "format": 2}, Store(tmp_path)
    del data["predictions"]
    data["manifest"]["cuda_graphs"] = True  # an option of earlier versions
    store.files.write(f"results/{CELL.id}.json", samples.sealed(data).encode())
    without = replace(RESULT, predictions=None)
    assert store.read_results([CELL.id]) == ([without], [])
    assert store.read_predictions([without]) == {}


def test_a_result_has_every_field() -> None:
    data = json.loads(RESULT.to_json())
    del data["support_size"]
    with pytest.raises(ValueError, match="support_size"):
        Result.of_cell(CELL.id, samples.sealed(data).encode())


def spoil(**changes: object) -> bytes:
    """Return a predictions file in which some arrays are replaced."""
    (split,) = parse_predictions(CONTENT, RESULT.evaluations)
    arrays = {name: getattr(split, name) for name in ("labels", "predicted", "probability")} | changes
    stream = io.BytesIO()
    np.savez_compressed(stream, **{f"digits/{name}": array for name, array in arrays.items()})
    return stream.getvalue()


WRONG = {
    "empty": b"",
    "no zip": b"no zip file",
    "pickled": spoil(predicted=np.array([object()] * 200)),
    "too short": spoil(predicted=np.zeros(199, np.uint16)),
    "another type": spoil(predicted=np.zeros(200, np.int64)),
    "other counts": spoil(predicted=np.zeros(200, np.uint16)),
    "no split": predictions_content([]),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_a_file_that_disagrees_with_its_result_is_refused(store: Store, content: bytes) -> None:
    """The file is refused although its checksum is the recorded one."""
    wrong = replace(RESULT, predictions=predictions_file(content))
    store.write_result(wrong, content)
    assert store.read_predictions([wrong]) == {}
    assert store.result_ids() == frozenset()


def test_an_array_that_would_fill_the_memory_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="it would unpack to 40000128 bytes"):
        parse_predictions(spoil(labels=np.zeros(20_000_000, np.uint16)), RESULT.evaluations)


def test_predictions_of_several_splits_are_in_the_order_of_the_scores() -> None:
    (split,) = parse_predictions(CONTENT, RESULT.evaluations)
    scores = tuple(replace(RESULT.evaluations[0], dataset=name) for name in ("b", "a"))
    content = predictions_content([replace(split, dataset="a"), replace(split, dataset="b")])
    found = parse_predictions(content, scores)
    assert [each.dataset for each in found] == ["b", "a"]
    assert isinstance(found[0], StoredPredictions)
