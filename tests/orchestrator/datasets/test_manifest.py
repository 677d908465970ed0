"""Tables of the catalog's datasets: read, refused with the place of the mistake, and their paths found."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from orchestrator.catalog import DatasetEntry, dataset_ref, missing_data
from orchestrator.cli.app import app
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.manifest import paths_and_labels, read_table
from orchestrator.datasets.routes.table_files import find_files
from orchestrator.util.errors import UserError
from tests.helpers import formats
from tests.helpers.small_archives import entry_of


def put(root: Path, *paths: str) -> None:
    for path in paths:
        formats.put(root / path, 0)


def manifest(folder: Path, text: str, recipe: str = "official", **route: Any) -> DatasetEntry:
    put(folder / "mine", *(f"photos/{n}.png" for n in range(6)))
    (folder / "mine" / "manifest.csv").write_text(text, encoding="utf-8-sig")
    return entry_of("", route={"kind": "manifest", "folder": "mine", **route}, splits={"recipe": recipe})


ROWS = (
    "path,label,split\nphotos/0.png,cat,train\nphotos/1.png,dog,train\nphotos/2.png,dog,test\nphotos/3.png,cat,test\n"
)


def test_a_manifest_with_parts(tmp_path: Path) -> None:
    raw = open_dataset(manifest(tmp_path, ROWS), tmp_path)
    assert raw.class_names == ("cat", "dog")
    assert raw.train.labels.tolist() == [0, 1]
    assert [raw.test.origin(index) for index in range(2)] == ["photos/2.png", "photos/3.png"]


def test_a_parquet_manifest_with_other_columns_and_a_recipe(tmp_path: Path) -> None:
    table = pa.table({"file": [f"photos/{n % 6}.png" for n in range(6)], "kind": [n % 2 + 9 for n in range(6)]})
    columns = {"path": "file", "label": "kind"}
    entry = manifest(tmp_path, "", "eighty_twenty", file="list.parquet", columns=columns)
    pq.write_table(table, tmp_path / "mine" / "list.parquet")
    raw = open_dataset(entry, tmp_path)
    assert raw.class_names == ("9", "10")  # by number, not by text
    assert (len(raw.train), len(raw.test)) == (4, 2)


def test_a_pattern_means_several_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The braces counted when missing files were looked for, and not when the table was read."""
    entry, folder = manifest(tmp_path, ROWS, file="{train,test}.csv"), tmp_path / "mine"
    assert "train.csv does not exist" in str(missing_data(entry, tmp_path))
    whole = open_dataset(manifest(tmp_path, ROWS), tmp_path)
    header, *rows = ROWS.splitlines()
    for part in ("train", "test"):
        here = [row.removesuffix(f",{part}") for row in [header.removesuffix(",split"), *rows]]
        (folder / f"{part}.csv").write_text("\n".join(row for row in here if row.count(",") == 1))
    raw = open_dataset(entry, tmp_path)
    for part in ("train", "test"):
        assert raw.parts[part].labels.tolist() == whole.parts[part].labels.tolist()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["data", "add", "mine/train.csv", "mine/test.csv"])
    assert "mine: 2 classes, 2 training images, 2 test images" in done.output
    done = CliRunner().invoke(app, ["data", "verify", "mine"])
    assert done.exit_code == 0, done.output
    before, text = dataset_ref(entry, tmp_path), (folder / "train.csv").read_text()
    (folder / "train.csv").write_text(text.replace("cat", "dot").replace("dog", "cat").replace("dot", "dog"))
    assert dataset_ref(entry, tmp_path) != before, "other labels of the same length"
    (folder / "test.csv").write_text("path\nphotos/2.png")
    (folder / "{train,test}.csv").write_text(ROWS)
    assert len(open_dataset(entry, tmp_path).train) == 2, "a file of that very name"
    (folder / "{train,test}.csv").unlink()
    with pytest.raises(UserError, match=r"test.csv: has the columns path, but train.csv has path, label"):
        open_dataset(entry, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("photos/1.png", "photos/17.png", "1 of 4 images are not there:\n  photos/17.png"),
        ("photos/1.png", "../1.png", "row 2: the path '../1.png' does not stay inside the folder"),
        ("photos/1.png", "/etc/passwd", "1 of 4 images are not below the table's folder:\n  /etc/passwd"),
        ("photos/1.png", "x" * 5000 + ".png", "1 of 4 images are not there:\n  xxx"),
        ("photos/1.png", "photos/0.png", "row 2: photos/0.png is listed twice, as 'cat' and as 'dog'"),
        ("dog,test", "dog,extra", "row 3: the split 'extra' is neither train nor test"),
        ("dog,train", ",train", "row 2 has no label"),
        ("photos/1.png", "", "row 2 has no path"),
        ("dog,train", "dog", "row 2 and the header have different numbers of fields"),
        ("path,", "file,", "has no column 'path', only file, label, split"),
        (",split", ",part", "comes without a 'test' split"),
        (",test", ",train", "lists no images of the split 'test'"),
        (ROWS, "path,label,split\n", "lists no images"),
        (ROWS, "", "has no column 'path', only an empty first line"),
        ("dog", "cat", "has one class"),
    ],
)
def test_the_error_of_a_wrong_manifest_names_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in ROWS
    with pytest.raises(UserError) as refusal:
        open_dataset(manifest(tmp_path, ROWS.replace(old, new)), tmp_path)
    assert expected in str(refusal.value)


def test_a_manifest_with_parts_is_not_split_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which the recipe 'eighty_twenty' would ignore"):
        open_dataset(manifest(tmp_path, ROWS, "eighty_twenty"), tmp_path)


# name -> (rows below the header, path of each image, class of each image or a part of the refusal)
_FOUND = {
    "names without suffix in two folders": ("img_0,a\nimg_1,b", ["one/img_0.jpg", "two/img_1.JPG"]),
    "other separators and case": ("Photos\\0.PNG,a\nPhotos\\1.PNG,b", ["photos/0.png", "photos/1.png"]),
    "paths of another computer": ("C:\\data\\x\\0.png,a\nC:\\data\\x\\1.png,b", ["x/0.png", "x/1.png"]),
    "paths from the root of a project": ("set/x/0.png,a\nset/x/1.png,b", ["x/0.png", "x/1.png"]),
    "paths of an annotation tool": ("/data/upload/1/0.png,a\n/data/upload/1/1.png,b", ["mine/0.png", "mine/1.png"]),
    "Label Studio's names": ("/data/upload/1/0a1b2c3d-0.png,a\n/data/upload/1/ffffffff-1.png,b", ["0.png", "1.png"]),
    "addresses": ("https://a.b/x/0.png,a\nhttps://a.b/x/1.png,b", ["y/0.png", "y/1.png"]),
    "converted images": ("0.dcm,a\nx/1.dcm,b", ["x/0.png", "x/1.png"]),
    "numbers with a point": ("0.0,a\n1.0,b", ["x/0.png", "x/01.png"]),
    "addresses with codes": ("file:///x/my%20cat.png,a\nfile:///x/b.png,b", ["y/my cat.png", "y/b.png"]),
    "numbers of a spreadsheet": ("0,a\n10,b", ["x/0000.png", "x/0010.png"]),
    "images in a folder of their own": ("a/0.png,a\nb/0.png,b", ["images/a/0.png", "images/b/0.png"]),
}


@pytest.mark.parametrize("case", _FOUND)
def test_paths_lead_to_the_only_images_that_they_can_mean(tmp_path: Path, case: str) -> None:
    rows, images = _FOUND[case]
    put(tmp_path / "mine", *images)
    (tmp_path / "mine" / "list.csv").write_text(f"path,label\n{rows}\n")
    columns = read_table(tmp_path / "mine" / "list.csv").columns
    paths, labels = paths_and_labels(columns, {}, Path())
    assert find_files(paths, labels, tmp_path / "mine", Path()) == images


@pytest.mark.parametrize(
    ("rows", "images", "expected"),
    [
        ("dog/1.png,dog\ncat/1.png,cat", ["cat/1.png", "fox/1.png"], "1 of 2 images are not there:\n  dog/1.png"),
        ("/data/train/1.png,a\n/data/train/2.png,b", ["test/1.png", "test/2.png"], "2 of 2 images are not there"),
        ("1,a\n2,b", ["x/1.png", "y/1.png", "x/2.png"], "row 1: 1 may mean x/1.png or y/1.png"),
        ("1,a\n2,b", ["x/01.png", "x/001.png", "x/2.png"], "row 1: 1 may mean x/001.png or x/01.png"),
        ("1.jpg,a\n2.jpg,b", ["x/1.jpg", "masks/2.png"], "1 of 2 images are not there"),
        ("1.jpg,a\n2.jpg,b", ["masks/1.png", "masks/2.png"], "2 of 2 images are not there"),
        ("1.dcm,a\n1.nii,b", ["x/1.gif"], "2 of 2 images are not there"),
        ("1.5,a\n2.5,b", ["x/1.png", "x/2.png"], "2 of 2 images are not there"),
        ("/x/1.png,a\n/y/2.png,b", ["z/1.png", "z/2.png"], "2 of 2 images are not there"),
    ],
)
def test_an_image_of_another_path_is_not_taken(tmp_path: Path, rows: str, images: list[str], expected: str) -> None:
    put(tmp_path / "mine", *images)
    paths, labels = zip(*(row.split(",") for row in rows.split("\n")), strict=True)
    with pytest.raises(UserError, match=expected):
        find_files(paths, labels, tmp_path / "mine", Path())


@pytest.mark.parametrize(
    ("train", "test"), [("trainval", "test"), ("TrainLabels", "TestLabels"), ("trainset", "testset")]
)
def test_names_of_tables_tell_the_parts(train: str, test: str, tmp_path: Path) -> None:
    """Regression: the user's own parts became one, which was divided anew, without a word."""
    for name in (train, test):
        (tmp_path / f"{name}.csv").write_text(f"path,label\n{name}.jpg,cat\n")
    assert read_table(tmp_path / f"{{{train},{test}}}.csv").columns["split"] == ["train", "test"]
    (tmp_path / f"{train}.csv").rename(tmp_path / "labels.csv")
    with pytest.raises(UserError, match="others neither train nor test"):
        read_table(tmp_path / f"{{labels,{test}}}.csv")


def test_parts_and_labels_choose_between_images_of_one_name(tmp_path: Path) -> None:
    """Regression: train.csv and test.csv of images in train/ and test/ were refused if both count from 1."""
    images = ["train/1.jpg", "test/1.jpg", "valid/cat/1.jpg", "valid/dog/1.jpg"]
    for image in images:
        (tmp_path / image).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / image).touch()
    labels, parts = ["cat", "cat", "cat", "dog"], ["train", "test", "val", "val"]
    assert find_files(["1.jpg"] * 4, labels, tmp_path, Path(), parts) == images
    assert find_files(["1.jpg"], ["cow"], tmp_path, Path("train.csv")) == ["train/1.jpg"]
    with pytest.raises(UserError, match="may mean"):
        find_files(["1.jpg"], ["cow"], tmp_path, Path())


def test_a_split_file_of_the_few_shot_benchmark_is_a_table(tmp_path: Path) -> None:
    split = {part: [[f"{part}{n}.jpg", n, ["cat", "dog"][n]] for n in (0, 1)] for part in ("train", "val", "test")}
    (tmp_path / "split_zhou_Mine.json").write_text(json.dumps(split))
    columns = read_table(tmp_path / "split_zhou_Mine.json").columns
    assert columns["path"] == ["train0.jpg", "train1.jpg", "val0.jpg", "val1.jpg", "test0.jpg", "test1.jpg"]
    assert (columns["label"], columns["split"][1::2]) == (["cat", "dog"] * 3, ["train", "val", "test"])
