"""Readers of routes with files in other layouts, incomplete files and damaged files."""

import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.catalog import DatasetEntry, excluded_file, load_catalog
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.datasets.class_words import class_words_of
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.class_folders import find_class_folders
from orchestrator.datasets.routes.manifest import find_files, paths_and_labels, read_table
from orchestrator.datasets.routes.parquet import shards_of
from orchestrator.datasets.routes.torchvision_sets import refuse_foreign_pickle
from orchestrator.util.errors import UserError
from tests.helpers import formats
from tests.helpers.small_archives import entry_of


def entry_with(route: dict[str, Any], **changes: Any) -> DatasetEntry:
    return entry_of("", **{"name": "mine", "route": route, **changes})


def refusal(entry: DatasetEntry, root: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_dataset(entry, root)
    return str(caught.value)


PARQUET = {"kind": "huggingface", "repo": "me/mine", "splits": {"all": "train"}}


def hub_route(**changes: Any) -> HuggingFaceRoute:
    return HuggingFaceRoute.model_validate({**PARQUET, **changes})


@pytest.mark.parametrize(
    ("paths", "changes", "expected"),
    [
        (["data/train-00001-of-00002.parquet", "data/train-00000-of-00002-0a1b2c.parquet", "data/test.parquet"], {},
         ["data/train-00000-of-00002-0a1b2c.parquet", "data/train-00001-of-00002.parquet"]),
        (["train.parquet", "data/retrain.parquet", "train.csv"], {}, ["train.parquet"]),
        (["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"], {},
         ["default/train/0000.parquet", "default/train/0001.parquet"]),
        (["full/train-00000-of-00001.parquet", "cropped/train-00000-of-00001.parquet"], {"config": "cropped"},
         ["cropped/train-00000-of-00001.parquet"]),
        (["data/SAT_4.parquet", "data/SAT_6.parquet"], {"files": {"all": "data/SAT_4.parquet"}},
         ["data/SAT_4.parquet"]),
        (["data/SAT_4_0.parquet", "data/SAT_6.parquet"], {"files": {"all": "data/SAT_4*"}}, ["data/SAT_4_0.parquet"]),
    ],
)  # fmt: skip
def test_the_shards_of_a_split(paths: list[str], changes: dict[str, Any], expected: list[str]) -> None:
    assert shards_of(paths, hub_route(**changes), "all") == expected


def test_a_missing_shard_is_an_error() -> None:
    with pytest.raises(UserError, match="shard 1 of the split 'train' is missing"):
        shards_of(["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"], hub_route(), "all")
    with pytest.raises(UserError, match="no parquet file of the split 'train'"):
        shards_of(["data/test-00000-of-00001.parquet"], hub_route(), "all")


def test_text_labels_name_their_classes(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", ["pear", "apple"] * 10, colours=[1, 0] * 10)
    raw = open_dataset(entry_with(PARQUET), tmp_path)
    assert raw.class_names == ("apple", "pear")
    for index in range(len(raw.train)):
        assert formats.label_seen(raw.train.read(index), in_grey=False) == raw.train.labels[index]


def test_numeric_labels_need_names_in_the_catalog(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", [False, True] * 5)
    assert "give class_names in the catalog's entry of mine" in refusal(entry_with(PARQUET), tmp_path)
    raw = open_dataset(entry_with(PARQUET, class_names=["healthy", "ill"]), tmp_path)
    assert raw.class_names == ("healthy", "ill")
    assert set(raw.train.labels.tolist()) == {0, 1}


def test_other_columns_and_plain_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"webp": [formats.encoded(n % 2, "webp") for n in range(10)], "cls": [0, 1] * 5}), path)
    columns = {"image": "webp", "label": "cls"}
    raw = open_dataset(entry_with({**PARQUET, "columns": columns}, class_names=["a", "b"]), tmp_path)
    assert raw.train.read(0).size == (16, 16)
    message = refusal(entry_with(PARQUET), tmp_path)
    assert "train.parquet: has no column 'image', only webp, cls" in message
    message = refusal(entry_with({**PARQUET, "columns": {"image": "webp"}}), tmp_path)
    assert "train.parquet: has no column 'label', only webp, cls" in message


def test_an_invalid_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    formats.write_parquet(path, [0, 1, 2], names=["a", "b"])
    assert "the label 2 is outside 0 to 1" in refusal(entry_with(PARQUET), tmp_path)
    formats.write_parquet(path, [0, None, 1], colours=[0, 0, 1], names=["a", "b"])
    assert "1 images have no label" in refusal(entry_with(PARQUET), tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    message = refusal(entry_with(PARQUET), tmp_path)
    assert "train.parquet: cannot be read as parquet" in message
    assert "data prepare mine" in message


def test_parts_with_different_class_names_are_refused(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", [0, 1], names=["a", "b"])
    formats.write_parquet(tmp_path / "mine/test.parquet", [0, 1], names=["b", "a"])
    entry = entry_with({**PARQUET, "splits": {"train": "train", "test": "test"}}, splits={"recipe": "official"})
    assert "do not name the same classes" in refusal(entry, tmp_path)


def test_a_row_without_an_image_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    path.parent.mkdir()
    images = [{"bytes": None, "path": "a.png"}, {"bytes": formats.encoded(0, "png"), "path": None}]
    pq.write_table(pa.table({"image": images * 5, "label": ["a", "b"] * 5}), path)
    part = open_dataset(entry_with(PARQUET), tmp_path).train
    with pytest.raises(ValueError, match="no image"):
        part.read(int(part.labels.argmin()))


def test_damage_in_one_row_group_affects_no_other(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    formats.write_parquet(path, [0, 1] * 50, names=["a", "b"], rows=10)
    chunk = pq.ParquetFile(path).metadata.row_group(3).column(0)  # the images of rows 30 to 39
    with open(path, "r+b") as stream:
        stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        stream.write(b"\xff" * chunk.total_compressed_size)
    part = open_dataset(entry_with(PARQUET), tmp_path).train
    broken = []
    for index in range(len(part)):
        try:
            part.read(index)
        except OSError:
            broken.append(int(part.origin(index).rpartition("[")[2][:-1]))
    assert broken
    assert set(broken) <= set(range(30, 40))


def test_images_can_be_read_by_many_threads(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", [n % 40 for n in range(400)],
                          names=[f"c{n}" for n in range(40)], rows=7)  # fmt: skip
    part = open_dataset(entry_with(PARQUET), tmp_path).train
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda index: formats.label_seen(part.read(index), in_grey=False), range(len(part))))
    assert seen == part.labels.tolist()


def test_the_parts_must_fit_the_split_recipe(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", [0, 1], names=["a", "b"])
    formats.write_parquet(tmp_path / "mine/test.parquet", [0, 1], names=["a", "b"])
    whole = entry_with(PARQUET, splits={"recipe": "official"})
    assert "mine comes without a 'test' split" in refusal(whole, tmp_path)
    parts = entry_with({**PARQUET, "splits": {"train": "train", "test": "test"}})
    assert "the recipe 'eighty_twenty' would ignore" in refusal(parts, tmp_path)


def test_a_part_without_images_is_an_error(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", [0, 1], names=["a", "b"])
    formats.write_parquet(tmp_path / "mine/test.parquet", [], names=["a", "b"])
    entry = entry_with({**PARQUET, "splits": {"train": "train", "test": "test"}}, splits={"recipe": "official"})
    assert "mine has no images in its test split" in refusal(entry, tmp_path)


MANUAL = {"kind": "manual", "instructions": "from a friend"}


def put(root: Path, *paths: str) -> None:
    for path in paths:
        formats.put(root / path, 0)


def test_class_folders_are_found_at_any_common_depth(tmp_path: Path) -> None:
    others = ("a/x/cat/._1.png", "poster.png", "__MACOSX/cat/1.png", ".git/z/c.png")
    put(tmp_path, "a/x/cat/1.png", "b/y/ant/2.PNG", *others)
    found = find_class_folders(tmp_path)
    assert [(name, [path.name for path in paths]) for name, paths in found.items()] == [
        ("ant", ["2.PNG"]), ("cat", ["1.png"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["cat/1.png", "dog/big/1.png"], "cat and dog/big hold images"),
        (["a/cat/1.png", "b/cat/1.png"], "a/cat and b/cat would be one class 'cat'"),
        (["cat/1.png", "dog/note.txt"], "dog: the class folder holds no images"),
        (["1.png"], "no class folders of images"),
    ],
)
def test_ambiguous_class_folders_are_refused(tmp_path: Path, paths: list[str], expected: str) -> None:
    for path in paths:
        if path.endswith(".txt"):
            formats.lines(tmp_path / "mine" / path, ["x"])
        else:
            put(tmp_path / "mine", path)
    assert expected in refusal(entry_with(MANUAL), tmp_path)


def test_class_folders_in_train_and_test(tmp_path: Path) -> None:
    entry = entry_with(MANUAL, splits={"recipe": "official"})
    put(tmp_path / "mine", "train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png")
    assert len(open_dataset(entry, tmp_path).test) == 2
    put(tmp_path / "mine", "test/eel/1.png")
    assert "class folder 'eel' is in test/ but not in train/" in refusal(entry, tmp_path)


def test_excluded_images_are_left_out_and_the_others_keep_their_part(tmp_path: Path) -> None:
    put(tmp_path / "mine", *(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(10)))
    entry = entry_with(MANUAL)
    before = open_dataset(entry, tmp_path)
    out = [before.train.origin(3), before.test.origin(0)]
    excluded_file(entry.name, tmp_path).write_text("".join(f"{origin}\tbroken\n" for origin in out))
    after = open_dataset(entry, tmp_path)
    for old, new in ((before.train, after.train), (before.test, after.test)):
        kept = [old.origin(index) for index in range(len(old)) if old.origin(index) not in out]
        assert [new.origin(index) for index in range(len(new))] == kept
        assert len(new) == len(old) - 1


def test_an_unknown_wordnet_id_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "imagenet_a/imagenet-a/n01440764/1.jpg", "imagenet_a/imagenet-a/n99999999/1.jpg")
    assert "n99999999 is none of the 1,000 classes" in refusal(load_catalog().dataset("imagenet_a"), tmp_path)
    put(tmp_path, "imagenet_v2/v2/7/1.jpeg", "imagenet_v2/v2/1000/1.jpeg")
    assert "1000 is no class; folders are 0 to 999" in refusal(load_catalog().dataset("imagenet_v2"), tmp_path)


def test_numbered_folders_count_by_their_number(tmp_path: Path) -> None:
    put(tmp_path, *(f"imagenet_v2/v2/{number}/1.jpeg" for number in (10, 9, 100)))
    part = open_dataset(load_catalog().dataset("imagenet_v2"), tmp_path).test
    assert part.labels.tolist() == [9, 10, 100]
    assert [part.origin(index) for index in range(3)] == ["v2/9/1.jpeg", "v2/10/1.jpeg", "v2/100/1.jpeg"]


def test_a_variant_of_imagenet_has_an_empty_training_part(tmp_path: Path) -> None:
    put(tmp_path, "imagenet_a/imagenet-a/n01440764/1.jpg")
    raw = open_dataset(load_catalog().dataset("imagenet_a"), tmp_path)
    assert (len(raw.train), len(raw.test)) == (0, 1)
    assert raw.train.labels.dtype == "int64"


def test_the_lists_of_cub_must_agree(tmp_path: Path) -> None:
    entry = load_catalog().dataset("cub200")
    formats.write(entry, tmp_path / "cub200")
    base = tmp_path / "cub200" / "CUB_200_2011"
    whole = (base / "images.txt").read_text()
    (base / "images.txt").write_text(whole[: len(whole) // 2].rpartition("\n")[0])
    assert "do not list the same images" in refusal(entry, tmp_path)
    (base / "images.txt").unlink()
    assert "images.txt: cannot be read" in refusal(entry, tmp_path)
    (base / "train_test_split.txt").unlink()
    assert "there is no train_test_split.txt" in refusal(entry, tmp_path)


def test_the_error_of_missing_files_names_the_command_that_fetches_them(tmp_path: Path) -> None:
    entry = load_catalog().dataset("mnist")
    (tmp_path / "mnist").mkdir()
    message = refusal(entry, tmp_path)
    assert "torchvision's MNIST(train=True) cannot be read" in message
    assert "python -m orchestrator data prepare mnist" in message
    formats.write(entry, tmp_path / "mnist")
    images = tmp_path / "mnist/MNIST/raw/t10k-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    assert "torchvision's MNIST(train=False) cannot be read" in refusal(entry, tmp_path)


def test_numeric_class_names_need_names_in_the_catalog(tmp_path: Path) -> None:
    entry = load_catalog().dataset("stl10")
    formats.write(entry, tmp_path / "stl10")
    (tmp_path / "stl10/stl10_binary/class_names.txt").unlink()
    assert "no file names the classes" in refusal(entry, tmp_path)


def test_torchvision_parts_with_different_classes_are_refused(tmp_path: Path) -> None:
    entry = load_catalog().dataset("country211")
    formats.write(entry, tmp_path / "country211")
    (tmp_path / "country211/country211/test/AC/1.jpg").unlink()
    (tmp_path / "country211/country211/test/AC").rmdir()
    assert "the parts do not name the same classes" in refusal(entry, tmp_path)


def test_an_unknown_class_of_torchvision_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    route = {"kind": "torchvision", "dataset": "MNISTT", "arguments": {"train": [{}], "test": [{}]}}
    assert "no dataset class 'MNISTT'" in refusal(entry_with(route), tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch exploded",))


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_pickle_with_code_is_refused(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = load_catalog().dataset("cifar10")
    formats.write(entry, tmp_path / "cifar10")
    bomb = tmp_path / "cifar10/cifar-10-batches-py/data_batch_3"
    bomb.write_bytes(pickle.dumps({"data": Bomb(), "labels": []}, protocol=protocol))
    assert "data_batch_3" in refusal(entry, tmp_path)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(ValueError, match="data_batch_3"):
        refuse_foreign_pickle(bomb)


def test_the_reader_of_imagenet_unpacks_no_archive(tmp_path: Path) -> None:
    entry = load_catalog().dataset("imagenet")
    root = tmp_path / "imagenet"
    put(root, "train/n01440764/1.JPEG")
    for name in ("ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"):
        (root / name).write_bytes(b"an archive")
    assert "meta.bin is not there" in refusal(entry, tmp_path)


def manifest(tmp_path: Path, text: str, *, recipe: str = "official", **route: Any) -> DatasetEntry:
    put(tmp_path / "mine", *(f"photos/{n}.png" for n in range(6)))
    (tmp_path / "mine" / "manifest.csv").write_text(text, encoding="utf-8-sig")
    return entry_with({"kind": "manifest", "folder": "mine", **route}, splits={"recipe": recipe})


ROWS = (
    "path,label,split\nphotos/0.png,cat,train\nphotos/1.png,dog,train\nphotos/2.png,dog,test\nphotos/3.png,cat,test\n"
)


def test_a_manifest_with_parts(tmp_path: Path) -> None:
    raw = open_dataset(manifest(tmp_path, ROWS), tmp_path)
    assert raw.class_names == ("cat", "dog")
    assert raw.train.labels.tolist() == [0, 1]
    assert [raw.test.origin(index) for index in range(2)] == ["photos/2.png", "photos/3.png"]


def test_a_parquet_manifest_with_other_columns_and_a_recipe(tmp_path: Path) -> None:
    put(tmp_path / "mine", *(f"{n}.png" for n in range(20)))
    pq.write_table(pa.table({"file": [f"{n}.png" for n in range(20)], "kind": [n % 2 + 9 for n in range(20)]}),
                   tmp_path / "mine" / "list.parquet")  # fmt: skip
    route = {"kind": "manifest", "folder": "mine", "file": "list.parquet", "columns": {"path": "file", "label": "kind"}}
    raw = open_dataset(entry_with(route), tmp_path)
    assert raw.class_names == ("9", "10")  # by number, not by text
    assert (len(raw.train), len(raw.test)) == (16, 4)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("photos/1.png", "photos/17.png", "1 of 4 images are not there:\n  photos/17.png"),
        ("photos/1.png", "../1.png", "row 2: the path '../1.png' does not stay inside the folder"),
        ("photos/1.png", "/etc/passwd", "1 of 4 images are not there:\n  /etc/passwd"),
        ("photos/1.png", "x" * 5000 + ".png", "1 of 4 images are not there:\n  xxx"),
        ("photos/1.png", "photos/0.png", "row 2: photos/0.png is listed twice, as 'cat' and as 'dog'"),
        ("dog,test", "dog,extra", "row 3: the split 'extra' is neither train nor test"),
        ("dog,train", ",train", "row 2 has no label"),
        ("photos/1.png", "", "row 2 has no path"),
        ("dog,train", "dog", "row 2 has not as many fields as the header"),
        ("path,", "file,", "has no column 'path', only file, label, split"),
        (",split", ",part", "has no column for the split"),
        (",test", ",train", "lists no images of the split 'test'"),
        (ROWS, "path,label,split\n", "lists no images"),
        (ROWS, "", "has no column 'path', only an empty first line"),
        ("dog", "cat", "has one class"),
    ],
)
def test_the_error_of_a_wrong_manifest_names_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in ROWS
    assert expected in refusal(manifest(tmp_path, ROWS.replace(old, new)), tmp_path)


# name -> (rows below the header, path of each image, class of each image or a part of the refusal)
_FOUND = {
    "names without suffix in two folders": ("img_0,a\nimg_1,b", ["one/img_0.jpg", "two/img_1.JPG"]),
    "other separators and case": ("Photos\\0.PNG,a\nPhotos\\1.PNG,b", ["photos/0.png", "photos/1.png"]),
    "paths of another computer": ("C:\\data\\x\\0.png,a\nC:\\data\\x\\1.png,b", ["x/0.png", "x/1.png"]),
    "paths from the root of a project": ("set/x/0.png,a\nset/x/1.png,b", ["x/0.png", "x/1.png"]),
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
    ],
)
def test_an_image_of_another_path_is_not_taken(tmp_path: Path, rows: str, images: list[str], expected: str) -> None:
    put(tmp_path / "mine", *images)
    paths, labels = zip(*(row.split(",") for row in rows.split("\n")), strict=True)
    with pytest.raises(UserError, match=expected):
        find_files(paths, labels, tmp_path / "mine", Path())


def test_a_manifest_with_parts_is_not_split_again(tmp_path: Path) -> None:
    assert "would split again" in refusal(manifest(tmp_path, ROWS, recipe="eighty_twenty"), tmp_path)


def test_class_names_match_regardless_of_spelling() -> None:
    entry = entry_with(MANUAL, class_names={"BareLand": "bare land", "golf-course": "golf links"})
    for spelled in (["BareLand", "golf-course"], ["bare land", "golf_course"], ["bareland", "Golf Course"]):
        assert class_words_of(entry, spelled) == ("bare land", "golf links")


def test_a_list_of_the_datas_names_in_another_order_is_refused() -> None:
    """Cats were called dogs. A list is in label order, which is the order of the names for folders and tables."""
    entry = entry_with(MANUAL, class_names=["cat", "dog", "Bird"], classes=3)
    with pytest.raises(
        UserError, match=r"not in label order: 'cat' is where the data's class is 'bird'.*\n.*\{bird: WORDS"
    ):
        class_words_of(entry, ["bird", "cat", "dog"])
    assert class_words_of(entry, ["cat", "dog", "bird"]) == ("cat", "dog", "Bird")
    assert class_words_of(entry, ["c0", "c1", "c2"]) == ("cat", "dog", "Bird")


@pytest.mark.parametrize("words", [["red mug", "Red Mug"], ["red mug", "red  mug"]])
def test_words_that_the_tokenizer_cannot_tell_apart_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="could not tell them apart"):
        entry_with(MANUAL, class_names=words, classes=2)


def test_some_classes_can_be_renamed() -> None:
    entry = entry_with(MANUAL, renamed={"Parting lot": "parking lot"})
    assert class_words_of(entry, ["fish_pond", "Parting lot"]) == ("fish pond", "parking lot")
    with pytest.raises(ValueError, match="renamed corrects"):
        entry_with(MANUAL, renamed={"a": "b"}, class_names=["a", "b"])


@pytest.mark.parametrize("names", [["storage_tank", "storage tank"], ["Pond", "pond"]])
def test_classes_that_would_get_the_same_words_are_refused(names: list[str]) -> None:
    with pytest.raises(UserError, match="would both be called"):
        class_words_of(entry_with(MANUAL), names)


def test_an_image_part_keeps_no_file_open(tmp_path: Path) -> None:
    put(tmp_path / "mine", *(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(5)))
    image = open_dataset(entry_with(MANUAL), tmp_path).train.read(0)
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    buffer = io.BytesIO()
    image.save(buffer, "png")
    assert buffer.tell() > 0


def test_the_handwritten_digits_are_white_on_black() -> None:
    raw = open_dataset(load_catalog().dataset("handwritten-digits"), None)
    assert len(raw.train) + len(raw.test) == 1797
    pixels = np.stack([np.asarray(raw.train.read(index)) for index in range(len(raw.train))])
    assert pixels.shape[1:] == (8, 8, 3)
    assert (pixels[:, 0, 0] == 0).mean() > 0.9
    assert pixels.max() == 255
    assert set(raw.train.labels.tolist()) == set(range(10))
