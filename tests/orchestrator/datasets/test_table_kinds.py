"""Tables and folders near to those that ``data add`` reads: refused with the reason, never read as something else."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.datasets.layouts import find_layout
from orchestrator.util.errors import UserError

PICTURES = [b"1", b"2", b"3"]
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
NAMED = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}

PARQUET: dict[str, tuple[dict[str, Any], str]] = {
    "labels in lists": (
        {"image": PICTURES, "label": [["cat"], ["dog"], ["dog"]]},
        r"has image \(binary\), label \(list",
    ),
    "labels in structures": ({"image": PICTURES, "label": [{"name": "cat"}] * 3}, r"has image .*, label \(struct"),
    "two images a row": (
        {"image": PICTURES, "mask": PICTURES, "label": list("abb")},
        r"image \(binary\), mask \(binary\)",
    ),
    "no class": ({"image": PICTURES, "label": [0, 1, -1]}, "the label -1 is none of the file's 2 classes"),
    "images as text": ({"image": ["iVBORw0KGgo/" * 400] * 3, "label": list("abb")}, "3 of 3 images are not there"),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_a_parquet_file_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    columns, says = PARQUET[kind]
    table = pa.table(columns)
    table = table.replace_schema_metadata(NAMED) if kind == "no class" else table
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(UserError, match=says) as caught:
        find_layout(tmp_path / "train.parquet")
    assert len(str(caught.value)) < 1000


def test_one_parquet_file_of_several_is_refused(tmp_path: Path) -> None:
    """The images of the other files were left out without a word."""
    table = pa.table({"image": PICTURES, "label": list("abb")})
    for name in ("train-00000-of-00002.parquet", "train-00000-of-00001.parquet"):
        pq.write_table(table, tmp_path / name)
    with pytest.raises(UserError, match="is one of 2 files"):
        find_layout(tmp_path / "train-00000-of-00002.parquet")
    assert find_layout(tmp_path / "train-00000-of-00001.parquet").names == ("a", "b")


def test_a_label_that_is_no_number_is_missing(tmp_path: Path) -> None:
    """pandas writes NaN for a missing number; ``nan`` was a class."""
    _csv(tmp_path, "path,label", "0", "1", "2")
    table = pa.table({"path": ["0.png", "1.png", "2.png"], "label": [0.0, 1.0, float("nan")]})
    pq.write_table(table, tmp_path / "list.parquet")
    with pytest.raises(UserError, match="row 3 has no label"):
        find_layout(tmp_path / "list.parquet")


ROWS = [{"file_name": "0.png", "label": "cat"}, {"file_name": "1.png", "label": "dog", "text": "a\u2028b"}]
WRITTEN = {
    "l.json": json.dumps(ROWS, indent=1),
    "l.jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n",
    "l.txt": "file_name label\n0.png cat\n1.png dog\n",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_table_of_json_or_spaces_is_read(name: str, tmp_path: Path) -> None:
    _csv(tmp_path, "path,label", "0", "1")
    (tmp_path / name).write_text(WRITTEN[name], encoding="utf-8")
    found = find_layout(tmp_path / name)
    assert (found.names, found.route["columns"]) == (("cat", "dog"), {"path": "file_name", "label": "label"})


@pytest.mark.parametrize(
    "content", ['{"images": [], "annotations": []}', '{\n"images": []}', '"a"\n', "[" * 100_000, ""]
)
def test_json_of_another_kind_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "coco.json").write_text(content)
    with pytest.raises(UserError, match=r"has no column 'path'|cannot be read as a table"):
        find_layout(tmp_path / "coco.json")


def test_a_label_that_may_name_several_classes_is_remarked(tmp_path: Path) -> None:
    found = find_layout(_csv(tmp_path, "path,label", "cat", "dog", "cat|dog", "sea lion"))
    assert [note for note in found.notes if "several classes" in note] == [
        "the label 'cat|dog' may name several classes, and is read as a class of its own"
    ]


@pytest.mark.parametrize("names", ["HAM_images_part_1 HAM_images_part_2", "images_001 images_002", "batch1 batch2"])
def test_portions_of_the_images_are_no_classes(names: str, tmp_path: Path) -> None:
    for name in names.split():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").touch()
    (tmp_path / "list.csv").touch()
    (tmp_path / "list_of_train.csv").touch()
    with pytest.raises(UserError, match=r"look like parts .*\n.*data add .*list_of_train\.csv"):
        find_layout(tmp_path)


def _csv(folder: Path, head: str, *rows: str) -> Path:
    for number in range(len(rows)):
        (folder / f"{number}.png").touch()
    (folder / "list.csv").write_text("\n".join([head, *(f"{number}.png,{row}" for number, row in enumerate(rows))]))
    return folder / "list.csv"


@pytest.mark.parametrize("column", ["is_train", "train", "Is Training", "is_test", "training_set"])
@pytest.mark.parametrize("values", [("1", "0"), ("True", "False")])
def test_a_column_that_marks_the_training_rows_is_not_passed_over(
    column: str, values: tuple[str, str], tmp_path: Path
) -> None:
    """The user's own test images became training images."""
    yes, no = values
    table = _csv(tmp_path, f"path,label,{column}", f"cat,{yes}", f"dog,{yes}", f"cat,{no}", f"dog,{yes}")
    with pytest.raises(UserError, match=f"{column}.* seems to say which rows are for training"):
        find_layout(table)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    found = find_layout(_csv(tmp_path, "path,train,truck", "1,0", "0,1", "1,0"))
    assert found.names == ("train", "truck")


def test_another_column_of_yes_and_no_is_only_not_used(tmp_path: Path) -> None:
    found = find_layout(_csv(tmp_path, "path,label,value", "cat,0", "dog,1"))
    assert "columns that are not used: value" in found.notes


@pytest.mark.parametrize("inner", ["train test", "images masks"])
def test_parts_inside_the_classes_are_not_mixed(inner: str, tmp_path: Path) -> None:
    for name in inner.split():
        for kind in ("cat", "dog"):
            (tmp_path / kind / name).mkdir(parents=True)
            (tmp_path / kind / name / "0.png").touch()
    with pytest.raises(UserError, match=r"in cat/, .* look like"):
        find_layout(tmp_path)
