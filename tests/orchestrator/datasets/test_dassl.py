"""The few-shot benchmark in the folders of CoOp and Dassl, and everything that may be wrong with them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import dataset_ref, load_catalog, missing_data, own_splits
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.state import other_data, state_of
from orchestrator.util.errors import UserError
from tools import eleven_mini

CALTECH = "caltech-101/split_zhou_Caltech101.json"
CATALOG = load_catalog()
ENTRY = CATALOG.dataset("eleven_caltech101")


@pytest.fixture
def caltech(benchmark: Path, tmp_path: Path) -> Path:
    """A root with Caltech101 alone, to be damaged."""
    shutil.copytree(benchmark / "caltech-101", tmp_path / "caltech-101")
    return tmp_path


def split_file(root: Path) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = json.loads((root / CALTECH).read_text())
    return found


@pytest.mark.parametrize("name", ["eleven_imagenet", *eleven_mini.TASKS])
def test_each_dataset_is_read_in_the_order_of_its_file(name: str, benchmark: Path) -> None:
    entry = CATALOG.dataset(name)
    before = sorted(benchmark.rglob("*"))
    raw = open_dataset(entry, benchmark)
    assert state_of(entry, benchmark) == "there"
    assert raw.train.read(0).size == (32, 32)
    if name != "eleven_imagenet":
        assert raw.validation is not None
        sizes = [len(part) / len(raw.class_names) for part in (raw.train, raw.validation, raw.test)]
        assert sizes == list(eleven_mini.SIZES.values())
    assert sorted(benchmark.rglob("*")) == before  # nothing is written into a lab's folder


def test_a_folder_that_is_no_class_of_imagenet_is_refused(benchmark: Path, tmp_path: Path) -> None:
    root = tmp_path / "imagenet"
    shutil.copytree(benchmark / "imagenet", root)
    one = min(next(root.rglob("train")).iterdir())
    shutil.copytree(one, one.with_name(f"{one.name} copy"))
    with pytest.raises(UserError, match=f"{one.name} copy is none of the 1,000 classes"):
        open_dataset(CATALOG.dataset("eleven_imagenet"), tmp_path)


def test_images_keep_the_order_of_the_file_and_names_their_words(caltech: Path) -> None:
    rows = split_file(caltech)
    names = {label: name for _, label, name in rows["train"]}
    rows["train"] = rows["train"][::-1]
    (caltech / CALTECH).write_text(json.dumps(rows))
    raw = open_dataset(ENTRY, caltech)
    assert raw.train.labels.tolist() == [row[1] for row in rows["train"]]
    assert raw.train.origin(0) == f"101_ObjectCategories/{rows['train'][0][0]}"
    assert list(raw.class_names) == [names[label].replace("_", " ") for label in range(len(names))]


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [("eleven_caltech101", "caltech-101", "Caltech101"), ("eleven_flowers102", "oxford_flowers", "Flower102")],
)
def test_other_codes_folder_names_are_read(name: str, ours: str, theirs: str, benchmark: Path, tmp_path: Path) -> None:
    shutil.copytree(benchmark / ours, tmp_path / theirs)
    assert len(open_dataset(CATALOG.dataset(name), tmp_path).train) > 0
    assert dataset_ref(CATALOG.dataset(name), tmp_path) == dataset_ref(CATALOG.dataset(name), benchmark)


def test_images_without_their_folder_are_found_beside_the_split_file(caltech: Path) -> None:
    images = caltech / "caltech-101" / "101_ObjectCategories"
    for folder in list(images.iterdir()):
        folder.rename(caltech / "caltech-101" / folder.name)
    images.rmdir()  # TPT and DMN have no such folder
    assert state_of(ENTRY, caltech) == "there"
    assert len(open_dataset(ENTRY, caltech).train) > 0


def test_of_two_folder_names_the_complete_folder_is_read(caltech: Path) -> None:
    shutil.copytree(caltech / "caltech-101", caltech / "Caltech101")
    shutil.rmtree(caltech / "caltech-101" / "101_ObjectCategories")
    assert len(open_dataset(ENTRY, caltech).train) > 0
    shutil.rmtree(caltech / "Caltech101" / "101_ObjectCategories")
    error = missing_data(ENTRY, caltech)
    assert "caltech-101 has no 101_ObjectCategories" in str(error)


def test_imagenet_without_validation_images_is_missing(benchmark: Path, tmp_path: Path) -> None:
    shutil.copytree(benchmark / "imagenet", tmp_path / "imagenet")
    entry = CATALOG.dataset("eleven_imagenet")
    shutil.rmtree(min((tmp_path / "imagenet/images/val").iterdir()))
    with pytest.raises(UserError, match="1 of 3 classes have no test images: n01440764"):
        open_dataset(entry, tmp_path)
    shutil.rmtree(tmp_path / "imagenet/images/val")
    assert state_of(entry, tmp_path) == "missing"
    assert "has no images/val" in str(missing_data(entry, tmp_path))


def test_an_archive_that_is_not_unpacked_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "imagenet-adversarial").mkdir()
    (tmp_path / "imagenet-adversarial" / "imagenet-a.tar").write_bytes(b"x")
    error = missing_data(CATALOG.dataset("eleven_imagenet_a"), tmp_path)
    assert "has no class folders, but imagenet-a.tar" in str(error)


def test_lists_with_a_byte_order_mark_are_read(benchmark: Path, tmp_path: Path) -> None:
    entry = CATALOG.dataset("eleven_fgvc_aircraft")
    shutil.copytree(benchmark / "fgvc_aircraft", tmp_path / "fgvc_aircraft")
    for path in (tmp_path / "fgvc_aircraft").glob("*.txt"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    found, same = (open_dataset(entry, root) for root in (tmp_path, benchmark))
    assert found.class_names == same.class_names
    assert found.train.labels.tolist() == same.train.labels.tolist()


def test_class_folders_that_are_links_are_read(benchmark: Path, tmp_path: Path) -> None:
    entry, real = CATALOG.dataset("eleven_imagenet_a"), benchmark / "imagenet-adversarial" / "imagenet-a"
    root = tmp_path / "imagenet-adversarial" / "imagenet-a"
    root.mkdir(parents=True)
    first, *others = sorted(real.iterdir())
    shutil.copytree(first, root / first.name)
    for folder in others:
        (root / folder.name).symlink_to(folder)
    (root / "again").symlink_to(root)  # links to what is searched anyway, or around it, are not followed
    (root / "around").symlink_to(tmp_path)
    assert open_dataset(entry, tmp_path).test.labels.tolist() == [0, 1, 2]
    shutil.rmtree(root)
    root.symlink_to(real)
    assert open_dataset(entry, tmp_path).test.labels.tolist() == [0, 1, 2]


def test_only_the_matched_variant_of_imagenet_v2_is_read(benchmark: Path, tmp_path: Path) -> None:
    matched, top = (f"imagenetv2-{name}-format-val" for name in ("matched-frequency", "top-images"))
    shutil.copytree(benchmark / "imagenetv2", tmp_path / "imagenetv2")
    shutil.copytree(tmp_path / "imagenetv2" / matched, tmp_path / "imagenetv2" / top)
    entry = CATALOG.dataset("eleven_imagenet_v2")
    test = open_dataset(entry, tmp_path).test
    assert {test.origin(index).split("/")[0] for index in range(len(test))} == {matched}
    shutil.rmtree(tmp_path / "imagenetv2" / matched)
    with pytest.raises(UserError, match=f"the catalog's dataset is {matched}, but the folder has only {top}"):
        open_dataset(entry, tmp_path)


Rows = dict[str, list[list[Any]]]


def with_row(change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    return with_rows(lambda rows: change(rows["train"][0]))


def with_rows(change: Callable[[Rows], object]) -> Callable[[Path], None]:
    """Return a damage that changes the lists of the split file in place."""

    def damage(root: Path) -> None:
        rows = split_file(root)
        change(rows)
        (root / CALTECH).write_text(json.dumps(rows))

    return damage


def without_label(label: int, *parts: str) -> Callable[[Path], None]:
    return with_rows(lambda rows: rows.update({part: [row for row in rows[part] if row[1] != label] for part in parts}))


def rename_images(suffix: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for path in list((root / "caltech-101").rglob("*.jpg")):
            path.rename(path.with_suffix(suffix))

    return damage


def lose_image(root: Path) -> None:
    (root / "caltech-101" / "101_ObjectCategories" / split_file(root)["test"][-1][0]).unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "outside": (with_row(lambda row: row.__setitem__(0, "../x.jpg")), "leaves the folder"),
    "two names": (with_row(lambda row: row.__setitem__(2, "other")), "label 0 has the names"),
    "text label": (with_row(lambda row: row.__setitem__(1, "0")), r"train\[0\] is"),
    "true label": (with_row(lambda row: row.__setitem__(1, True)), r"train\[0\] is"),
    "short row": (with_row(lambda row: row.pop()), r"train\[0\] is"),
    "skipped label": (without_label(2, "train", "val", "test"), "no image has the label 2"),
    "no training images": (without_label(1, "train"), "1 of 4 classes have no training images: a capital letter"),
    "no test images": (without_label(1, "test"), "1 of 4 classes have no test images: a capital letter"),
    "listed twice": (
        with_rows(lambda rows: rows["test"].append(rows["train"][0])),
        "lists 1 images more than once: a digit/train_0.jpg",
    ),
    "another suffix": (rename_images(".JPG"), r"there is a digit/train_0\.JPG instead of a digit/train_0\.jpg"),
    "another form": (rename_images(".tif"), r"train_0\.tif instead of .*; these are other files of the dataset"),
    "missing image": (lose_image, "1 of the .* listed images are not in"),
    "latin-1": (lambda root: (root / CALTECH).write_bytes("é".encode("latin-1")), "cannot be read"),
    "not json": (lambda root: (root / CALTECH).write_text("{"), "cannot be read"),
    "nested": (lambda root: (root / CALTECH).write_text("[" * 200_000), "cannot be read"),
    "no parts": (lambda root: (root / CALTECH).write_text("{}"), "three lists"),
    "no file": (lambda root: (root / CALTECH).unlink(), "has no split_zhou_Caltech101.json, but 101_ObjectCategories"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_benchmark_gets_one_clear_message(damage: str, caltech: Path) -> None:
    change, message = DAMAGES[damage]
    change(caltech)
    with pytest.raises(UserError, match=message) as caught:
        open_dataset(ENTRY, caltech)
    if damage not in ("another suffix", "another form"):  # these have a hint of their own
        assert "CoOp's DATASETS.md" in str(caught.value)


def test_a_split_of_a_labs_own_is_said_and_is_another_dataset(caltech: Path) -> None:
    assert own_splits([ENTRY], None) == ()
    assert "split_zhou_Caltech101.json" in own_splits([ENTRY], caltech)[0]
    assert dataset_ref(ENTRY, caltech) != dataset_ref(ENTRY, None)


def test_a_root_of_the_benchmark_is_not_taken_for_other_datasets(benchmark: Path) -> None:
    error = other_data(CATALOG.dataset("dtd"), benchmark)
    assert error is not None
    assert "data list --domain eleven" in str(error)
    assert "rename" not in str(error)
    absent = missing_data(CATALOG.dataset("eleven_sun397"), benchmark / "dtd")
    assert absent is not None
    assert "sun397 does not exist (nor SUN397)" in str(absent)
