"""Tables that ``data add`` reads; what is only near to them is refused with the reason, never read as another."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.catalog import dataset_ref
from orchestrator.datasets.adding import Added, DatasetOptions, add_dataset
from orchestrator.datasets.layouts import find_layout
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.manifest import read_table
from orchestrator.datasets.series import series_of
from orchestrator.util.errors import UserError
from tests.helpers.photographs import CLASSES, photograph


def add_table(table: Path, **options: Any) -> Added:
    return add_dataset(table, [table.parent.parent / "mine.yaml"], DatasetOptions(name="mine", **options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the images 1.jpg to 6.jpg."""
    (tmp_path / "photos").mkdir()
    for number in range(1, 7):
        photograph("red_mug", number).save(tmp_path / "photos" / f"{number}.jpg")
    return tmp_path / "photos"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("with_split", [True, False])
def test_a_table_becomes_an_entry(tmp_path: Path, folder: Path, kind: str, with_split: bool) -> None:
    rows = [(f"{name}{n}.jpg", name, "test" if n == 4 else "train") for name in CLASSES for n in range(5)]
    for file, name, _ in rows:
        photograph(name, len(file)).save(folder / file)
    names = ("filename", "class", "split")[: 2 + with_split]
    columns = dict(zip(names, zip(*rows, strict=True), strict=False))
    table = folder / f"list.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), table)
    else:
        table.write_text("\n".join(",".join(row) for row in [names, *zip(*columns.values(), strict=True)]))
    entry = add_table(table).entry
    assert (entry.sizes.train, entry.sizes.test) == (12, 3)
    before = dataset_ref(entry, tmp_path)
    assert open_dataset(entry, tmp_path).class_names == ("green plate", "blue bottle", "red mug")
    if kind == "csv":  # the same size, other labels: another dataset
        table.write_text(table.read_text().replace("red_mug0.jpg,red_mug", "red_mug0.jpg,der_mug"))
        assert dataset_ref(entry, tmp_path) != before


_ROWS = "1.jpg,{0}\n2.jpg,{1}\n3.jpg,{0}\n4.jpg,{1}\n".format
_TOOL = "".join(f"/data/upload/1/{n}.jpg,7{n},{c},1\n" for n, c in enumerate(("cat", "dog") * 2, 1))
_BREEDS = "".join(f"{n}.jpg,{n}0,{'ab'[n % 2]}\n" for n in range(1, 5))
_GOOD_OR_BAD = "1.jpg,1,1,0\n2.jpg,2,1,0\n3.jpg,1,0,1\n4.jpg,2,1,0\n"
# name -> (a table with one row for each of four images, its two classes, part of a remark)
READ: dict[str, tuple[str | bytes, tuple[str, str], str]] = {
    "semicolons": ("path;label\n" + _ROWS("cat", "dog").replace(",", ";"), ("cat", "dog"), "semicolons"),
    "Excel's first line": ("sep=|\npath|label\n" + _ROWS("a", "b").replace(",", "|"), ("a", "b"), "bars"),
    "UTF-16": (f"path,label\n{_ROWS('cat', 'dog')}".replace(",", "\t").encode("utf-16"), ("cat", "dog"), "UTF-16"),
    "Windows-1252": (f"path,label\n{_ROWS('été', 'œuf')}".encode("cp1252"), ("été", "œuf"), "Windows-1252"),
    "line ends of old Macs": ("Path, Label\r" + _ROWS("cat", "dog").replace("\n", "\r"), ("cat", "dog"), "Path"),
    "semicolons in a field": ("path,label,a;b;c;d\n" + _ROWS("cat,1", "dog,2"), ("cat", "dog"), ""),
    "quotes": ("path,label\n" + _ROWS('"a, ""b"""', "c"), ('a, "b"', "c"), ""),
    "characters that do not print": ("path,label\n" + _ROWS("a\u200cb", "c\xa0d"), ("a\u200cb", "c\xa0d"), ""),
    "empty rows": ("path,label\n" + _ROWS("a", "b") + "\n,\n", ("a", "b"), ""),
    "another language": ("datei,klasse\n" + _ROWS("cat", "dog"), ("cat", "dog"), "label from 'klasse'"),
    "numbers and names": ("path,label,art\n" + _ROWS("1,cat", "0,dog"), ("cat", "dog"), "1 is cat, 0 is dog"),
    "marks": ("image,cat,dog\n" + _ROWS("1.0,0.0", "0.0,1.0"), ("cat", "dog"), "has a 1: cat, dog"),
    "marks beside numbers": ("image,label,cat,dog\n" + _ROWS("1,1,0", "2,0,1"), ("cat", "dog"), "has a 1: cat, dog"),
    "marks beside names": ("image,label,cat,dog\n" + _ROWS("rex,1,0", "tom,0,1"), ("rex", "tom"), "not used: cat, dog"),
    "marks of quality": ("image,label,good,bad\n" + _GOOD_OR_BAD, ("1", "2"), "not used: good, bad"),
    "marks of pandas": ("image,cat,dog\n" + _ROWS("True,False", "False,True"), ("cat", "dog"), "has a 1"),
    "ids of numbers and pictures": (
        "id,photo,label\n" + "".join(f"{5 - n},{n}.jpg,{'dc'[n % 2]}\n" for n in range(1, 5)),
        ("c", "d"),
        "path from 'photo'",
    ),
    "an annotation tool's": ("image,id,choice,annotator\n" + _TOOL, ("cat", "dog"), "label from 'choice'"),
    "numbers with a point": ("path,label\n" + _ROWS("1.0", "2.0"), ("1.0", "2.0"), "describe an image"),
    "whole numbers": ("path,label\n1.jpg,1\n2.jpg,2.0\n3.jpg,1.0\n4.jpg,2\n", ("1", "2"), "describe an image"),
    "jerseys": ("path,label\n" + _ROWS("0", "00"), ("0", "00"), "describe an image"),
    "rejected": (
        "path,label,answer\n" + _ROWS("cat,reject", "dog,accept"),
        ("cat", "dog"),
        "which images to leave out",
    ),
    "excluded": ("path,label,exclude\n" + _ROWS("cat,1", "dog,0"), ("cat", "dog"), "which images to leave out"),
    "nothing rejected": ("path,label,skip\n" + _ROWS("cat,0", "dog,0"), ("cat", "dog"), "not used: skip"),
    "folds": ("path,label,fold\n" + _ROWS("a,1", "b,2"), ("a", "b"), "not used: fold"),
    "yes and no": ("path,label,value\n" + _ROWS("cat,0", "dog,1"), ("cat", "dog"), "not used: value"),
}
_MASKS = "id,mask,label\n" + "".join(f"{n},{{0}}{5 - n}.jpg,{'ba'[n % 2]}\n" for n in range(1, 5))
READ["masks that are not there"] = (_MASKS.format("m_"), ("a", "b"), "path from 'id'")
READ["images called label"] = ("label,art\n" + _ROWS("cat", "dog"), ("cat", "dog"), "path from 'label'")
READ["x and y"] = ("x,y,fold\n" + _ROWS("a,1", "b,2"), ("a", "b"), "label from 'y'")
# name -> (a table, part of the refusal)
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "Cyrillic": (f"path,label\n{_ROWS('кот', 'пес')}".encode("cp1251"), "neither UTF-8 nor"),
    "Japanese": (f"path,label\n{_ROWS('ネコ', 'イヌ')}".encode("shift-jis"), "neither UTF-8 nor"),
    "Mac Roman": (f"path,label\n{_ROWS('Käse', 'Brot')}".encode("mac-roman"), "neither UTF-8 nor"),
    "CP850": (f"path,label\n{_ROWS('Käse', 'Brot')}".encode("cp850"), "neither UTF-8 nor"),
    "marks of parts": ("image,art,is_train,is_test\n" + _ROWS("cat,1,0", "dog,0,1"), "which rows are for training"),
    "a hint that fits": ("image,width,breed\n" + _BREEDS, "--column label=breed"),
    "a coordinate": ("file,x,y,species\n" + _ROWS("7,0,cat", "7,5,dog"), "has no column 'label'"),
    "two pictures": (
        "before,after,label\n" + _ROWS("2.jpg,cat", "1.jpg,dog"),
        "--column path=before or --column path=after",
    ),
    "masks": (_MASKS.format(""), "--column path=id or --column path=mask"),
    "masks without images": (_MASKS.replace("\n", "\n7").format("")[:-1], "--column path=id or --column path=mask"),
    "labels in bytes": ("path,label\n" + _ROWS("\x01", "\x02"), "holds control characters"),
    "classes like parts": ("path,art\n" + _ROWS("train", "festival"), "--column label=art"),
    "a label for each image": ("path,label\n1.jpg,a\n2.jpg,b\n3.jpg,c\n", "every class needs at least two images"),
    "no header": (_ROWS("cat", "dog"), "the first line has the image 1.jpg"),
    "ids without header": (_ROWS("cat", "dog").replace(".jpg", ""), "add a first line"),
    "a title": ("My pictures\npath,label\n" + _ROWS("cat", "dog"), "must be the header"),
    "coarser names": ("path,label,class_name\n" + _ROWS("1,cat", "2,cat"), "--column label=class_name"),
    "several columns": ("datei,art,wer\n" + _ROWS("cat,me", "dog,me"), "--column label=art"),
    "a spreadsheet": ("PK", "save a spreadsheet as CSV"),
    "marks of several classes": (
        "path,cat,dog\n" + _ROWS("1,0", "1,1"),
        "keep only the rows with exactly one 1",
    ),
    "pixels": ("label,pixel0,pixel1\n" + "0,0,0\n1,1,7\n" * 2, "write them as image files"),
    "two labels": ("path,label\n" + _ROWS("a", "b") + "1.jpg,b\n", "twice, as 'a' and as 'b'"),
}


def write(table: Path, content: str | bytes) -> Path:
    table.write_bytes(content.encode() if isinstance(content, str) else content)
    return table


@pytest.mark.parametrize("case", READ)
def test_a_table_is_read_where_it_is_unambiguous(folder: Path, case: str) -> None:
    content, classes, remark = READ[case]
    added = add_table(write(folder / "list.csv", content))
    assert isinstance(added.entry.class_names, dict)
    assert tuple(added.entry.class_names) == classes
    raw = open_dataset(added.entry, added.data_root)
    origins = {part.origin(row): int(part.labels[row]) for part in raw.parts.values() for row in range(len(part))}
    assert origins == {"1.jpg": 0, "2.jpg": 1, "3.jpg": 0, "4.jpg": 1}
    assert remark in "\n".join(added.notes)


@pytest.mark.parametrize("case", REFUSED)
def test_an_ambiguous_table_is_refused(folder: Path, case: str) -> None:
    content, says = REFUSED[case]
    with pytest.raises(UserError) as refusal:
        add_table(write(folder / ("list.xlsx" if case == "a spreadsheet" else "list.csv"), content))
    assert says in str(refusal.value)


def test_a_table_with_corrected_labels_is_not_that_which_was_added(folder: Path) -> None:
    """Regression: the entry stayed as it was, and with it the size of the smallest class."""
    rows = [f"{n}.jpg,{'ab'[n % 2]},{'train' if n < 5 else 'test'}" for n in range(1, 7)]
    table = write(folder / "list.csv", "\n".join(["path,label,split", *rows]))
    assert add_table(table).entry == add_table(table).entry
    write(table, table.read_text().replace("1.jpg,b", "1.jpg,a"))
    with pytest.raises(UserError, match="there is a dataset 'mine' already"):
        add_table(table)


def test_columns_of_a_folder_are_refused(tmp_path: Path) -> None:
    """Regression: ``--column`` was ignored, where the user meant the table in the folder."""
    with pytest.raises(UserError, match="is a folder, which has no columns"):
        find_layout(tmp_path, {"label": "species"})


def test_rows_of_validation_are_not_used_and_a_named_column_stays_named(folder: Path) -> None:
    rows = "1.jpg,cat,x,Training\n2.jpg,dog,y,Training\n3.jpg,cat,x,test\n4.jpg,dog,y,TEST\n5.jpg,fox,z,valid\n"
    table = write(folder / "list.csv", "path,a,b,Usage\n" + rows)
    added = add_table(table, columns={"label": "a"})
    assert added.entry.class_names == {"cat": "cat", "dog": "dog"}
    assert (added.entry.sizes.train, added.entry.sizes.test) == (2, 2)
    notes = "\n".join(added.notes)
    for fact in ("validation split: 1,", "does not list: 1,", "not used: b"):
        assert fact in notes
    assert add_table(table, replace=True).entry == added.entry
    with pytest.raises(UserError, match="unknown column 'c'"):
        find_layout(table, {"label": "c"})


def test_a_label_that_is_no_number_is_missing(tmp_path: Path) -> None:
    """pandas writes NaN for a missing number; ``nan`` was a class."""
    _csv(tmp_path, "path,label", "0", "1", "2")
    table = pa.table({"path": ["0.png", "1.png", "2.png"], "label": [0.0, 1.0, float("nan")]})
    pq.write_table(table, tmp_path / "list.parquet")
    with pytest.raises(UserError, match="row 3 has no label"):
        find_layout(tmp_path / "list.parquet")


def test_the_images_in_a_file_that_two_datasets_read_are_counted(folder: Path) -> None:
    """Regression: a parquet file with coarse and fine labels, added for both, counted as one image."""
    images = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    table = pa.table({"image": images, "fine": ["cat", "dog"] * 3, "coarse": ["pet", "wild"] * 3})
    pq.write_table(table, folder / "both.parquet")
    add_table(folder / "both.parquet", columns={"label": "fine"})
    options = DatasetOptions(name="other", columns={"label": "coarse"})
    added = add_dataset(folder / "both.parquet", [folder.parent / "mine.yaml"], options)
    assert added.notes[-1].startswith("images that mine has as well: 6;")


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
    "content",
    ['{"0.png": "cat", "1.png": "dog"}', '{"classes": ["dog", "cat"], "labels": {"0": 1, "1": 0}}',
     '{"classes": null, "labels": {"0": "cat", "1": "dog"}}'],
)  # fmt: skip
def test_json_may_map_images_to_labels(content: str, tmp_path: Path) -> None:
    _csv(tmp_path, "path,label", "0", "1")
    (tmp_path / "l.json").write_text(content)
    table = read_table(tmp_path / "l.json")
    assert table.columns["label"] == ["cat", "dog"]
    assert find_layout(tmp_path / "l.json").names == ("cat", "dog")


@pytest.mark.parametrize(
    "content",
    ['{"images": [], "annotations": []}', '{"cat": 0, "dog": 1}', '{"labels": {"0": ["cat"]}}', '{\n"images": []}',
     '"a"\n', "[" * 100_000, "",
     '{"path": {"0": "0.png", "1": "1.png"}, "label": {"0": "cat", "1": "dog"}}',
     '{"path": {"0": "1.png", "1": "0.png"}, "labels": {"0": "cat", "1": "dog"}}',
     '[{"path": "0.png", "label": ["cat"]}, {"path": "1.png", "label": ["dog"]}]'],
)  # fmt: skip
def test_json_of_another_kind_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "coco.json").write_text(content)
    with pytest.raises(
        UserError, match=r"has no column 'path', only an empty|cannot be read as a table|the label \['cat'\] is a list"
    ):
        find_layout(tmp_path / "coco.json")


def test_a_pattern_may_mean_one_file_and_a_file_of_lines_one_image(tmp_path: Path) -> None:
    """Regression: the pattern itself was opened, and the only line was called an object in place of a list."""
    _csv(tmp_path, "path,label", "cat", "dog").rename(tmp_path / "0.csv")
    assert find_layout(tmp_path / "{0..0}.csv").names == ("cat", "dog")
    for name, row in zip(("train", "test"), ROWS, strict=True):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**row, "text": ""}) + "\n")
    assert read_table(tmp_path / "{train,test}.jsonl").columns["split"] == ["train", "test"]


def test_a_damaged_list_says_where(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(WRITTEN["l.json"].replace('"label": "dog"', '"label" "dog"'))
    with pytest.raises(UserError, match="line 8 column 11"):
        find_layout(tmp_path / "l.json")


@pytest.mark.parametrize("folders", ["images masks", "train test"])
def test_images_of_folders_that_are_not_alike_are_told(folders: str, tmp_path: Path) -> None:
    """Regression: a mask was taken for an image that is missing, and test images were divided anew, without a word."""
    names = [tmp_path / folder / name for folder, name in zip(folders.split(), ("0.png", "1.png"), strict=True)]
    for name in names:
        name.parent.mkdir()
        name.touch()
    (tmp_path / "list.csv").write_text("path,label\n0.png,cat\n1.png,dog\n")
    assert "the table's images in them are used alike" in str(find_layout(tmp_path / "list.csv").notes)


def test_tables_in_several_folders_are_one_dataset(tmp_path: Path) -> None:
    """Regression: image folders of the hub, and exports with a table in each part, had to be rewritten by hand."""
    for part in ("train", "valid", "test"):
        (tmp_path / part).mkdir()
        _csv(tmp_path / part, "path, cat, dog", "0, 1", "1, 0", "0, 1").rename(tmp_path / part / "_classes.csv")
        pq.write_table(pa.table({"image": [b"1", b"2", b"3"], "label": [part] * 3}), tmp_path / part / "a.parquet")
    found = find_layout(tmp_path / "{train,valid,test}/_classes.csv")
    assert (found.names, found.recipe) == (("cat", "dog"), "official")
    columns = read_table(tmp_path / "{train,valid,test}/_classes.csv").columns
    assert columns["path"] == [f"{part}/{n}.png" for part in ("train", "valid", "test") for n in range(3)]
    columns, _, readers = read_table(tmp_path / "{train,test}/a.parquet")
    assert columns["split"] == columns["label"] == ["train"] * 3 + ["test"] * 3
    assert [*readers] == columns["path"]
    assert len(readers) == 6
    for part in ("train", "test"):  # names of files further below, as a single table may have them
        (tmp_path / part / "images").mkdir()
        (tmp_path / part / "0.png").rename(tmp_path / part / "images" / "0.png")
        (tmp_path / part / "list.csv").write_text("path,label\n0.png,cat\n")
        (tmp_path / part / "tool.csv").write_text(f"path,label\n/data/{part}0.png,cat\n/data/{part}1.png,dog\n")
        for n in range(2):
            (tmp_path / part / "images" / f"{part}{n}.png").touch()
    assert read_table(tmp_path / "{train,test}/list.csv").columns["path"] == ["train/images/0.png", "test/images/0.png"]
    (note, *_) = find_layout(tmp_path / "{train,test}/tool.csv").notes
    assert "/data/train0.png is read as train/images/train0.png" in note, "the folders have other names"
    with pytest.raises(
        UserError, match=r"data add \S*/test/_classes.csv \S*/train/_classes.csv \S*/valid/_classes.csv"
    ):
        find_layout(tmp_path)


@pytest.mark.parametrize(
    ("column", "noted"),
    [("patientId", True), ("Video", True), ("case_id", True), ("StudyInstanceUID", True), ("website", False),
     ("Patient Age", False), ("showcase", False)],
)  # fmt: skip
def test_images_that_belong_together_and_may_be_split_are_remarked(column: str, noted: bool, tmp_path: Path) -> None:
    """Regression: a patient's images were divided among training and test without a word.

    One group of all images, or one for each class, is no sign of images that belong together.
    """
    for values, expected in (("aabb", noted), ("aaaa", False), ("abab", False)):
        table = _csv(tmp_path, f"path,label,{column}", *map(",".join, zip(("cat", "dog") * 2, values, strict=True)))
        assert any("add a column 'split'" in note for note in find_layout(table).notes) == expected


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("clip{0}_frame{1:03}", True), ("{0:05}_{1:05}", True), ("patient{0}/{1}", True),
        ("{0}_jpg.{2}", True), ("n02085620_{0}{1}", False), ("{0}{1}", False),
        ("IMG_2026010{0}_03040{1}", False), ("IMG-2026010{0}-WA000{1}", False),
        ("WhatsApp Image 2026-01-0{0} at 10.00.0{1}", False), ("2026-01-0{0} 10.00.0{1}", False),
        ("200{0}_00002{1}", False), ("batch{0}/IMG_{1}", False),
        ("10{0}CANON/IMG_{1}", False), ("1000004{0}/{1}", True), ("clip{0}_mp4-{1}_jpg.rf." + "0a" * 16, True),
        ("IMG_{0}{1}_jpg.rf." + "0a" * 16, False), ("2026010{0}_03040{1}_jpg.rf." + "0a" * 16, False),
        ("Bildschirmfoto 2026-01-0{0} um 10.00.0{1}", False), ("2026010{0}_frame_00000{1}", True),
    ],
)  # fmt: skip
def test_frames_and_slices_that_may_be_split_are_remarked(name: str, noted: bool, tmp_path: Path) -> None:
    """Regression: images of one video or patient were divided among training and test without a word.

    In a table, that was so for frames of videos, too.
    """
    rows, changes = ["path,label"], ("left", "flipLR", "new90deg", "rf." + "0a" * 16)
    for label in "ab":
        for video, frame in product(range(3), range(4)):
            image = tmp_path / label / f"{name.format(video, frame, changes[frame])}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.touch()
            rows.append(f"{image.relative_to(tmp_path)},{label}")
    assert any("to keep series together" in note for note in find_layout(tmp_path).notes) == noted
    (tmp_path / "list.csv").write_text("\n".join(rows))
    assert any("to keep series together" in note for note in find_layout(tmp_path / "list.csv").notes) == noted


@pytest.mark.parametrize("name", ["images_00{0}/ISIC_{1}", "2023/0{0}/IMG_{1}", "Pixel {0}/IMG_2026010{0}_03040{1}"])
def test_folders_with_images_of_most_classes_say_nothing_about_series(name: str, tmp_path: Path) -> None:
    paths = [name.format(n // 4, n % 4) + ".png" for n in range(24)]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    rows = ["path,label", *(f"{path},{'ab'[n % 2]}" for n, path in enumerate(paths))]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    assert not any("to keep series together" in note for note in find_layout(tmp_path / "list.csv").notes)


@pytest.mark.parametrize(("divided", "noted"), [("frames", True), ("videos", False), ("numbered anew", False)])
def test_series_that_are_in_both_parts_are_remarked(divided: str, noted: bool, tmp_path: Path) -> None:
    """Regression: frames of one video in the user's own train/ and test/ raised every accuracy without a word."""
    rows = []
    for label, video, frame, part in product("ab", range(3), range(4), ("train", "test")):
        if divided == "numbered anew" or (part == "test") == ((frame if divided == "frames" else video) == 2):
            image = tmp_path / part / label / f"clip{video}_frame{frame}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.touch()
            rows.append(f"{image.relative_to(tmp_path)},{label},{part},{part * (divided == 'numbered anew')}{video}")
    assert any("in both parts" in note for note in find_layout(tmp_path).notes) == noted
    for column in ("clip", "size"):
        write(tmp_path / "list.csv", "\n".join([f"path,label,split,{column}", *rows]))
        found = [note for note in find_layout(tmp_path / "list.csv").notes if "are in both parts" in note]
        assert [note[:8] for note in found] == ["rows of " if column == "clip" else "the name"] * noted


@pytest.mark.parametrize(("videos", "found"), [((2, 2), True), ((2, 1), True), ((5, 1, 1), True), ((2, 1, 1), False)])
def test_a_class_of_single_photographs_does_not_hide_the_series_of_others(videos: tuple[int, ...], found: bool) -> None:
    """Regression: one class of photographs, or of a single video, beside classes of videos divided all series."""
    numbers = [(str(label), video) for label, of in enumerate(videos) for video in range(of)]
    frames = [(label, f"v{video}_{n}") for label, video in numbers for n in range(4)]
    photographs = [("other", f"{n}") for n in range(90)]
    assert [*series_of(frames + photographs)] == [
        (frames[n][0], frames[n][1][:3]) for n in range(0, len(frames), 4)
    ] * found
    views = [("a", f"image{picture}/{view}") for picture in range(2) for view in range(2)]
    assert series_of(views).keys() == {("a", "image0/"), ("a", "image1/")}


def test_numbers_of_rows_are_not_taken_for_those_of_images(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"000{number}.png").touch()
    (tmp_path / "l.csv").write_text("id,frame,label\n0,0001,a\n1,0000,b\n2,0003,a\n3,0002,b\n")
    with pytest.raises(UserError, match="--column path=id or --column path=frame"):
        find_layout(tmp_path / "l.csv")
    assert find_layout(tmp_path / "l.csv", {"path": "frame"}).names == ("a", "b")
    (tmp_path / "l.csv").write_text("id,frame,label\n0,1,a\n1,0,b\n2,3,a\n3,2,b\n")  # zeros dropped in both
    with pytest.raises(UserError, match="--column path=id or --column path=frame"):
        find_layout(tmp_path / "l.csv")
    (tmp_path / "l.csv").write_text("id,frame,label\n0,7,a\n1,7,b\n2,8,a\n3,8,b\n")
    assert "0 is read as 0000.png, and the other paths likewise" in find_layout(tmp_path / "l.csv").notes


@pytest.mark.parametrize("names", ["HAM_images_part_1 HAM_images_part_2", "images_001 images_002", "batch1 batch2"])
def test_portions_of_the_images_are_no_classes(names: str, tmp_path: Path) -> None:
    for name in names.split():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").touch()
        (tmp_path / name / "list_of_train.csv").touch()
    (tmp_path / "list.csv").touch()
    with pytest.raises(UserError, match=r"look like parts .*\n.*data add \S*list_of_train\.csv$"):
        find_layout(tmp_path)


def _csv(folder: Path, head: str, *rows: str) -> Path:
    for number in range(len(rows)):
        (folder / f"{number}.png").touch()
    (folder / "list.csv").write_text("\n".join([head, *(f"{number}.png,{row}" for number, row in enumerate(rows))]))
    return folder / "list.csv"


@pytest.mark.parametrize(
    ("column", "yes", "no"),
    [("is_train", "1", "0"), ("train", "True", "False"), ("Is Training", "1", "0"), ("is_test", "True", "False"),
     ("training_set", "1", "0"), ("is_valid", "False", "True"), ("used_for_training", "1", "0"),
     ("Train?", "yes", "no"), ("holdout", "0", "1"), ("train_or_test", "1", "0"), ("partition", "0", "2"),
     ("split_id", "1", "3"), ("set", "train_1", "test_1"), ("cam", "gallery", "query"), ("set", "dev", "test"),
     ("set", "tr", "te"), ("set", "labeled", "unlabeled"),
     ("ensemble", "entraînement", "test")],
)  # fmt: skip
def test_a_column_that_marks_training_rows_is_not_ignored(column: str, yes: str, no: str, tmp_path: Path) -> None:
    """The user's own test images became training images."""
    table = _csv(tmp_path, f"path,label,{column}", f"cat,{yes}", f"dog,{yes}", f"cat,{no}", f"dog,{yes}")
    with pytest.raises(UserError, match=f"{column}.* seems to say which rows are for training"):
        find_layout(table)


def test_a_column_that_numbers_other_things_is_no_split(tmp_path: Path) -> None:
    rows = "cat,0,fold1,train station,image_1,image", "dog,1,fold2,city,image_2,mask"
    table = _csv(tmp_path, "path,label,part,fold,scene,id,kind", *rows)
    assert "columns that are not used: part, fold, scene, id, kind" in find_layout(table).notes


def test_a_column_of_short_names_for_the_parts_states_them(tmp_path: Path) -> None:
    """Regression: the user's own parts were divided anew."""
    table = _csv(tmp_path, "path,label,phase", "cat,trn", "dog,trn", "cat,tst", "dog,tst", "cat,vld")
    assert find_layout(table).route["columns"]["split"] == "phase"


@pytest.mark.parametrize("others", ["PublicTest PrivateTest", "val", "Dev", "holdout"])
def test_a_column_of_other_parts_than_train_and_test_is_not_ignored(others: str, tmp_path: Path) -> None:
    """Regression: FER2013's own test images (``Usage``) were divided anew, together with the training images."""
    table = _csv(tmp_path, "path,label,Usage", "cat,Training", *(f"dog,{part}" for part in others.split()))
    with pytest.raises(UserError, match="'Usage' seems to say which rows are for training"):
        find_layout(table)


def test_a_table_of_tests_beside_is_not_ignored_in_silence(tmp_path: Path) -> None:
    """Regression: beside ``train.csv``, the user's own test images were left out without a word."""
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    inner = _csv(tmp_path / "train", "path,label", "cat", "dog")
    assert any(note.startswith("test is not used") for note in find_layout(inner).notes)
    train = _csv(tmp_path, "path,label", "cat", "dog").rename(tmp_path / "train.csv")
    assert not any("is not used" in note for note in find_layout(train).notes)
    (tmp_path / "test.csv").touch()
    assert any(note.startswith("test.csv is not used") for note in find_layout(train).notes)
    for label in ("train/a", "train/b", "test/a"):
        (tmp_path / label).mkdir()
    assert any(note.startswith("test/ beside train/ is not used") for note in find_layout(tmp_path / "train").notes)


def test_paths_may_have_idle_steps(tmp_path: Path) -> None:
    _csv(tmp_path, "path,label", "cat", "dog")
    (tmp_path / "list.csv").write_text("path,label\n.//0.png,cat\n././1.png,dog\n")
    assert find_layout(tmp_path / "list.csv").names == ("cat", "dog")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    found = find_layout(_csv(tmp_path, "path,train,truck", "1,0", "0,1", "1,0"))
    assert found.names == ("train", "truck")
