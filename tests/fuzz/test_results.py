"""A damaged result file is set aside, which opens its cell again, or it is read exactly as written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.store import Store
from orchestrator.store.results import Failure, Result
from orchestrator.util.errors import UserError
from tests.fuzz.cases import cases, damaged, odd, spoiled
from tests.helpers import cells as samples

CELL, OTHER = samples.cell(1), samples.cell(2)
RESULT = samples.result(CELL)
DESCRIBED, PREDICTIONS = samples.predictions(RESULT)
WRITTEN = DESCRIBED.to_json()
PLAIN = json.loads(WRITTEN)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store in which all tests of this module write the result file of the same cell."""
    return Store(tmp_path_factory.mktemp("results"))


def read(store: Store, content: bytes) -> Result | None:
    """Read a result file with this content; return ``None`` after checking that the file was set aside.

    A file that says that a later version wrote it ends the reading, and is not set aside.
    """
    folder = Path(store.files.root, "results")
    folder.mkdir(exist_ok=True)
    path = folder / f"{CELL.id}.json"
    path.write_bytes(content)
    path.with_suffix(".npz").write_bytes(PREDICTIONS)  # without it, a result is set aside whatever it says
    try:
        results, put_aside = store.read_results([CELL.id])
    except UserError:
        return None
    if results:
        assert (len(results), put_aside) == (1, [])
        return results[0]
    assert put_aside == [CELL.id]
    assert CELL.id not in store.result_ids()
    return None


def test_the_undamaged_file_is_read(store: Store) -> None:
    assert samples.sealed(PLAIN) == WRITTEN
    assert read(store, WRITTEN.encode()) == DESCRIBED


@cases(350)
@given(content=spoiled(WRITTEN.encode()))
def test_a_changed_byte_of_a_result_is_detected(store: Store, content: bytes) -> None:
    assert read(store, content) is None


@cases(150)
@given(data=damaged(PLAIN), seal=st.booleans())
def test_changed_data_is_read_as_written_or_set_aside(store: Store, data: Any, seal: bool) -> None:
    """A correct checksum is not enough: only a possible result is read."""
    if not isinstance(data, dict):
        return
    try:
        text = samples.sealed(data) if seal else json.dumps(data, indent=1)
    except (TypeError, ValueError):  # no JSON
        return
    found = read(store, text.encode())
    if found is not None:
        assert found.cell == CELL
        again = json.loads(found.to_json())
        said = {**json.loads(text), "format": 3}
        said.setdefault("predictions", None)
        for each in (again, said):
            each.pop("sha256")
        assert again == said


IMPOSSIBLE = {
    "an accuracy that is not a number": ("accuracy", float("nan")),
    "an infinite accuracy": ("accuracy", float("inf")),
    "an accuracy that its counts do not give": ("accuracy", 62.0),
    "an accuracy that is a text": ("accuracy", "62.5"),
    "an accuracy that is true": ("accuracy", True),
    "a negative count": ("correct", -125),
    "more right than there are": ("correct", 201),
    "a count that the classes do not add up to": ("correct", 124),
    "a total of nothing": ("total", 0),
    "another total": ("total", 201),
    "classes that do not add up": ("per_class", [[60, 100], [64, 100]]),
    "a class with more right than it has": ("per_class", [[101, 100], [24, 100]]),
    "a class of three numbers": ("per_class", [[60, 100, 1], [65, 100]]),
    "a class of a fraction": ("per_class", [[60.0, 100], [65, 100]]),
    "no classes": ("per_class", []),
    "another dataset": ("dataset", "letters"),
    "a zero-shot accuracy that no count gives": ("accuracy_zero_shot", 50.1),
    "a zero-shot accuracy beyond all": ("accuracy_zero_shot", 150.0),
    "an accuracy among own classes alone": ("accuracy_own_classes", 70.0),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_score_is_an_error(case: str) -> None:
    data = json.loads(WRITTEN)
    key, value = IMPOSSIBLE[case]
    data["evaluations"][0][key] = value
    with pytest.raises(ValueError, match=r"evaluations"):
        Result.of_cell(CELL.id, samples.sealed(data).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [("details", {"alpha": object()}), ("details", {"alpha": [1]}), ("trainable_parameters", -1), ("evaluations", ())],
)
def test_a_result_that_could_not_be_read_back_is_not_written(tmp_path: Path, field: str, value: Any) -> None:
    wrong = replace(RESULT, **{field: value})
    with pytest.raises(ValueError, match=r"details|parameters|scores"):
        Store(tmp_path).write_result(wrong)
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.parametrize("field", ["track", "domain", "shots", "seed", "sources_rule"])
def test_a_cell_with_a_list_for_a_name_is_set_aside(store: Store, field: str) -> None:
    """A track that was a list, under a correct checksum, once ended the command that read it."""
    data = json.loads(WRITTEN)
    data["cell"][field] = []
    assert read(store, samples.sealed(data).encode()) is None


@cases(50)
@given(content=st.binary(max_size=300) | st.text(max_size=100).map(str.encode) | odd.map(lambda v: repr(v).encode()))
@example(content=b"[" * 100_000)
@example(content=b'{"a":' * 100_000)
@example(content=b"9" * 10_000)
@example(content=samples.result(OTHER).to_json().encode())
def test_a_file_that_is_no_result_of_this_cell_is_set_aside(store: Store, content: bytes) -> None:
    assert read(store, content) is None


@cases(75)
@given(content=spoiled(Failure(CELL.id, "ValueError: no", "trace", "log", 1, "2026-01-01").to_json().encode()))
@example(content=b"[" * 100_000)
def test_a_damaged_failure_record_is_read_or_shown_as_damaged(store: Store, content: bytes) -> None:
    store.files.write(f"failures/{CELL.id}.json", content)
    try:
        found = store.read_failures()
        assert len(found) == 1
        ((key, failure),) = found.items()
        assert key == failure.id
        assert all(isinstance(word, str) for word in (failure.id, failure.error, failure.log))
        one = store.read_failure(CELL.id)
        assert one is None or one == failure
    finally:
        store.files.remove(f"failures/{CELL.id}.json")
