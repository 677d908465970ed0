"""Parquet files that ``data add`` reads: with paths, or with the images themselves."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.datasets.layouts import find_layout
from orchestrator.datasets.routes.manifest import read_table
from orchestrator.util.errors import UserError

PICTURES = [b"1", b"2", b"3"]
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
NAMED = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}

PARQUET: dict[str, tuple[dict[str, Any], str]] = {
    "labels in lists": ({"image": PICTURES, "label": [["cat"], ["dog"], ["dog"]]}, r"image \(binary\), label \(list"),
    "labels in structures": ({"image": PICTURES, "label": [{"name": "cat"}] * 3}, r"has image .*, label \(struct"),
    "two images": ({"image": PICTURES, "mask": PICTURES, "label": list("abb")}, r"image \(binary\), mask \(binary\)"),
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


def test_names_beside_encoded_images_count_only_if_there_are_files(tmp_path: Path) -> None:
    """Regression: a parquet file of the hub with the names of its images was refused, as the files are not there."""
    names = ["1.png", "0.png", "2.png"]
    pq.write_table(pa.table({"image": PICTURES, "label": list("abb"), "file_name": names}), tmp_path / "a.parquet")
    (tmp_path / "banner.png").touch()
    assert find_layout(tmp_path / "a.parquet").route["columns"] == {"path": "path", "label": "label"}
    for name in names:
        (tmp_path / name).touch()
    assert find_layout(tmp_path / "a.parquet").route["columns"]["path"] == "file_name"


def test_one_parquet_file_of_several_is_refused(tmp_path: Path) -> None:
    """The images of the other files were left out without a word."""
    table = pa.table({"image": PICTURES, "label": list("abb")})
    tmp_path /= "part-00001-of-00002"  # the name of a folder says nothing
    tmp_path.mkdir()
    for name in ("train-00000-of-00002.parquet", "train-00000-of-00001.parquet"):
        pq.write_table(table, tmp_path / name)
    with pytest.raises(UserError, match=r"a set of 2 files.*given: 0\n.*\{00000\.\.00001\}"):
        find_layout(tmp_path / "train-00000-of-00002.parquet")
    assert find_layout(tmp_path / "train-00000-of-00001.parquet").names == ("a", "b")
    pq.write_table(table, tmp_path / "train-00001-of-00002.parquet")
    columns = read_table(tmp_path / "train-{00000..00001}-of-00002.parquet").columns
    assert columns["label"] == [*"abbabb"]
    assert len({*columns["path"]}) == 6
    with pytest.raises(UserError, match=r"a set of 1 file;.*given: 0, 0, 1\n.*alone"):  # images counted twice
        read_table(tmp_path / "train-{00000-of-00001,00000-of-00002,00001-of-00002}.parquet")
    for upload in ("0a", "0b"):
        pq.write_table(table, tmp_path / f"val-00000-of-00002-{upload}.parquet")
    with pytest.raises(UserError, match=r"a set of 2 files.*given: 0, 0\n"):
        read_table(tmp_path / "val-00000-of-00002-{0a,0b}.parquet")


STRUCTS = [{"bytes": picture, "path": "a.png"} for picture in PICTURES]
IN_COLUMN: dict[str, tuple[list[Any], str]] = {
    "lists of one": ([[image] for image in STRUCTS], ""),
    "lists of two": ([[image] * 2 for image in STRUCTS], "the row holds 2 images, not one"),
    "paths": ([{"bytes": None, "path": f"x/{n}.png"} for n in range(3)], "only the path x/0.png"),
}


@pytest.mark.parametrize("kind", IN_COLUMN)
def test_images_of_a_column_in_other_forms_are_read_or_named(kind: str, tmp_path: Path) -> None:
    """Regression: a list of images ended with a traceback."""
    column, says = IN_COLUMN[kind]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array(column, pa.list_(struct) if "lists" in kind else struct)
    pq.write_table(pa.table({"image": images, "label": list("abb")}), tmp_path / "t.parquet")
    readers: list[Any] = [*read_table(tmp_path / "t.parquet").readers.values()]
    if not says:
        assert [reader().getvalue() for reader in readers] == PICTURES
        return
    with pytest.raises(ValueError, match=says):
        readers[0]()
