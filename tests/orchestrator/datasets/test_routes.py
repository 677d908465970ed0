"""Readers of routes with files in other layouts, incomplete files and damaged files."""

import io
import os
import pickle
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.catalog import DatasetEntry, excluded_file, load_catalog
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.class_folders import find_class_folders
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
        (["en/train-00000-of-00001.parquet", "fr/train-00000-of-00001.parquet"], {"files": {"all": "*/train*"}},
         ["en/train-00000-of-00001.parquet", "fr/train-00000-of-00001.parquet"]),
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


def test_text_labels_name_their_classes(tmp_path: Path) -> None:
    formats.write_parquet(tmp_path / "mine/train.parquet", ["pear", "apple"] * 10, colours=[1, 0] * 10)
    raw = open_dataset(entry_with(PARQUET), tmp_path)
    assert raw.class_names == ("apple", "pear")
    for index in range(len(raw.train)):
        assert formats.label_seen(raw.train.read(index), in_grey=False) == raw.train.labels[index]


def test_other_columns_plain_bytes_and_names_in_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"webp": [formats.encoded(n % 2, "webp") for n in range(10)], "cls": [0, 1] * 5}), path)
    columns = {"image": "webp", "label": "cls"}
    raw = open_dataset(entry_with({**PARQUET, "columns": columns}, class_names=["a", "b"]), tmp_path)
    assert raw.train.read(0).size == (16, 16)
    assert raw.class_names == ("a", "b")
    assert set(raw.train.labels.tolist()) == {0, 1}
    for chosen, lacking in (({}, "image"), ({"image": "webp"}, "label")):
        message = refusal(entry_with({**PARQUET, "columns": chosen}), tmp_path)
        assert f"train.parquet: has no column '{lacking}', only webp, cls" in message


PARTS = {"splits": {"train": "train", "test": "test"}}
# name -> (labels and class names of train.parquet, of test.parquet, fields of the route, the recipe, the refusal)
UNUSABLE: dict[str, tuple[Any, Any, dict[str, Any], str, str]] = {
    "labels without names": (
        ([False, True], None),
        None,
        {},
        "eighty_twenty",
        "give class_names in the catalog's entry",
    ),
    "a label of no class": (([0, 1, 2], ["a", "b"]), None, {}, "eighty_twenty", "the label 2 is outside 0 to 1"),
    "no label": (([0, None, 1], ["a", "b"]), None, {}, "eighty_twenty", "1 images have no label"),
    "other classes": (([0, 1], ["a", "b"]), ([0, 1], ["b", "a"]), PARTS, "official", "not give the same class names"),
    "no test part": (([0, 1], ["a", "b"]), None, {}, "official", "mine comes without a 'test' split"),
    "parts to be split": (([0, 1], ["a", "b"]), ([0, 1], ["a", "b"]), PARTS, "eighty_twenty", "would ignore"),
    "an empty part": (([0, 1], ["a", "b"]), ([], ["a", "b"]), PARTS, "official", "no images in its test split"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_parquet_file_is_refused(tmp_path: Path, case: str) -> None:
    *parts, route, recipe, says = UNUSABLE[case]
    for name, part in zip(("train", "test"), parts, strict=True):
        if part is not None:
            path = tmp_path / f"mine/{name}.parquet"
            formats.write_parquet(path, part[0], names=part[1], colours=[label or 0 for label in part[0]])
    assert says in refusal(entry_with({**PARQUET, **route}, splits={"recipe": recipe}), tmp_path)


def test_a_truncated_parquet_file_and_a_missing_shard_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine/train.parquet"
    formats.write_parquet(path, [0, 1], names=["a", "b"])
    path.write_bytes(path.read_bytes()[:-30])
    message = refusal(entry_with(PARQUET), tmp_path)
    assert "train.parquet: cannot be read as parquet" in message
    assert "data prepare mine" in message
    with pytest.raises(UserError, match="a set of 3 files; numbers of the files given: 0, 2"):
        shards_of(["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"], hub_route(), "all")
    with pytest.raises(UserError, match="no parquet file of the split 'train'"):
        shards_of(["data/test-00000-of-00001.parquet"], hub_route(), "all")
    for twice in (
        ["-00000-of-00001-0a", "-00000-of-00001-0b"],
        [f"-0000{n}-of-0000{of}" for n, of in ((0, 1), (0, 2), (1, 2))],
    ):
        with pytest.raises(UserError, match=r"a set of \d files?; numbers of the files given: 0, 0.*\n.*`config`"):
            shards_of([f"data/train{name}.parquet" for name in twice], hub_route(), "all")


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
        (["a/cat/1.png", "b/cat/1.png"], "a/cat and b/cat have the same class name"),
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


def test_a_variant_of_imagenet_has_its_known_classes_and_an_empty_training_part(tmp_path: Path) -> None:
    put(tmp_path, "imagenet_a/imagenet-a/n01440764/1.jpg")
    raw = open_dataset(load_catalog().dataset("imagenet_a"), tmp_path)
    assert (len(raw.train), len(raw.test), str(raw.train.labels.dtype)) == (0, 1, "int64")
    put(tmp_path, "imagenet_a/imagenet-a/n99999999/1.jpg")
    assert "n99999999 is none of the 1,000 classes" in refusal(load_catalog().dataset("imagenet_a"), tmp_path)
    put(tmp_path, "imagenet_v2/v2/7/1.jpeg", "imagenet_v2/v2/1000/1.jpeg")
    assert "1000 is no class; folders are 0 to 999" in refusal(load_catalog().dataset("imagenet_v2"), tmp_path)


def test_numbered_folders_count_by_their_number(tmp_path: Path) -> None:
    put(tmp_path, *(f"imagenet_v2/v2/{number}/1.jpeg" for number in (10, 9, 100)))
    part = open_dataset(load_catalog().dataset("imagenet_v2"), tmp_path).test
    assert part.labels.tolist() == [9, 10, 100]
    assert [part.origin(index) for index in range(3)] == ["v2/9/1.jpeg", "v2/10/1.jpeg", "v2/100/1.jpeg"]


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("cub200", "sed -i '$d' CUB_200_2011/images.txt", "do not list the same images"),
        ("cub200", "rm CUB_200_2011/images.txt", "images.txt: cannot be read"),
        ("cub200", "rm CUB_200_2011/*.txt", "there is no train_test_split.txt"),
        ("mnist", "rm -r MNIST", "torchvision's MNIST(train=True) cannot be read"),
        ("mnist", "rm -r MNIST", "python -m orchestrator data prepare mnist"),
        ("mnist", "truncate -s -5 MNIST/raw/t10k-images*", "torchvision's MNIST(train=False) cannot be read"),
        ("stl10", "rm stl10_binary/class_names.txt", "no file names the classes"),
        ("country211", "rm -r country211/test/AC", "do not have the same classes"),
    ],
)
def test_incomplete_files_are_refused(tmp_path: Path, name: str, damage: str, says: str) -> None:
    entry = load_catalog().dataset(name)
    formats.write(entry, tmp_path / name)
    subprocess.run(damage, shell=True, cwd=tmp_path / name, check=True)
    assert says in refusal(entry, tmp_path)


def test_an_unknown_class_of_torchvision_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    route = {"kind": "torchvision", "dataset": "MNISTT", "arguments": {"train": [{}], "test": [{}]}}
    assert "no dataset class 'MNISTT'" in refusal(entry_with(route), tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch exploded",))


@pytest.mark.parametrize("protocol", [0, 4])
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
