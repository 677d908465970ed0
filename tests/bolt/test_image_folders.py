"""The reader of folders: images, classes, parts, and notes on unused files."""

from itertools import product
from pathlib import Path

import pytest
from PIL import Image

import bolt
from bolt.image_folders import (
    class_folders,
    dataset_folder,
    how_to_lay_out,
    image_suffixes,
    images_below,
    part_folders,
    unused_notes,
    why_no_class_folders,
    why_no_classes,
)

KINDS = ("hidden", ".cr2", ".nef", "iCloud", "suffix:")


def fill(folder: Path, *names: str) -> Path:
    """Write a file for each name: a picture if the suffix is that of an image, otherwise some bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        kind = {".png": "PNG", ".jfif": "JPEG", ".jpe": "JPEG", ".ppm": "PPM"}.get(Path(name).suffix)
        if kind and not name.startswith("._"):
            Image.new("RGB", (4, 4)).save(folder / name, kind)
        else:
            (folder / name).write_bytes(b"\0\5")
    return folder


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("Training", "Testing"), {"train", "test"}),
        (("Train", "Validation", "TEST"), {"train", "val", "test"}),
        (("train", "dev"), {"train", "val"}),
        (("training_set", "Test Images"), {"train", "test"}),
        (("train-data", "valid_split", "testset"), {"train", "val", "test"}),
        (("trains", "tests"), set()),
    ],
)
def test_parts_are_known_in_any_case_and_spelling(tmp_path: Path, names: tuple[str, ...], parts: set[str]) -> None:
    for name in names:
        fill(tmp_path / name / "cat", "a.png")
    assert part_folders(tmp_path).keys() == parts


def test_a_class_called_test_is_no_part_and_a_folder_of_the_usual_name_is_the_part(tmp_path: Path) -> None:
    for name in ("test", "control"):
        fill(tmp_path / "classes" / name, "a.png")
    assert part_folders(tmp_path / "classes") == {}
    assert [path.name for path in class_folders(tmp_path / "classes")] == ["control", "test"]
    for name in ("Train Images", "train", "test"):
        fill(tmp_path / "parts" / name / "cat", "a.png")
    assert part_folders(tmp_path / "parts")["train"] == tmp_path / "parts" / "train"


@pytest.mark.parametrize(
    "names",
    [
        "train test", "seg_pred seg_train seg_test", "train2017 val2017 annotations", "1_train 2_test",
        "Trainingsdaten Testdaten", "entrenamiento prueba", "训练集 测试集", "fold1 fold2", "images labels",
        "JPEGImages SegmentationClass", "trainA trainB testA testB", "support query", "Fold_A Fold_B",
    ],
)  # fmt: skip
def test_parts_and_annotations_are_no_classes(names: str, tmp_path: Path) -> None:
    """They were taken for classes, and a model learned to tell training images from test images."""
    for name in names.split():
        fill(tmp_path / name, "0.png")
    with pytest.raises(ValueError, match="not like classes"):
        bolt.read_folder(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        "train bus",
        "test control",
        "mask no_mask",
        "train_station train_car",
        "valley cat",
        "image painting",
        "tea test_tube",
    ],
)
def test_classes_with_such_words_are_classes(names: str) -> None:
    assert not why_no_classes(names.split())


def test_folders_of_systems_and_programs_are_no_classes_in_any_case(tmp_path: Path) -> None:
    for name in ("cat", "$Recycle.Bin", "@Recycle", "CaptureOne/Cache", "LOST.DIR", "#snapshot"):
        fill(tmp_path / name, "0.png")
    assert [path.name for path in class_folders(tmp_path)] == ["cat"]


def test_parts_are_found_one_level_down(tmp_path: Path) -> None:
    for part in ("Train", "Test"):
        fill(tmp_path / "pets" / part / "cat", "a.png")
    assert dataset_folder(tmp_path) == tmp_path / "pets"
    assert dataset_folder(tmp_path / "pets") == tmp_path / "pets"


def test_what_is_no_image_is_counted_by_kind(tmp_path: Path) -> None:
    cat = fill(tmp_path / "cat", "0.png", "1.jfif", "2.JPE", "IMG_1.NEF", "IMG_2.nef", "raw.CR2", "a.txt")
    fill(cat, "._0.png", ".5.HEIC.icloud")
    (cat / "2.JPE").write_bytes((cat / "1.jfif").read_bytes())
    fill(cat / ".ipynb_checkpoints", "0-checkpoint.png")
    fill(cat / "@eaDir" / "0.png", "SYNOPHOTO_THUMB_M.png")
    fill(cat / "more", "3.ppm")
    fill(tmp_path / ".git" / "x", "0.png")
    assert [path.name for path in images_below(cat)] == ["0.png", "1.jfif", "2.JPE", "3.ppm"]
    below, *notes = unused_notes(tmp_path, [tmp_path])
    assert below.startswith("1 image in sub-folders beside images")
    found = [(note.split(" ")[0], next(word for word in note.split() if word in KINDS)) for note in notes]
    assert found == [("3", "hidden"), ("1", ".cr2"), ("2", ".nef"), ("1", "iCloud"), ("1", "suffix:")]
    assert (
        len(images_below(cat)) + 2 + 1 + 2 + 1 == sum(path.is_file() for path in cat.rglob("*")) - 2
    )  # ._0.png, .icloud


def test_persons_in_numbered_classes_are_no_copy_of_the_dataset(tmp_path: Path) -> None:
    for gesture, person in product("123", "12"):
        fill(tmp_path / gesture / person, "0.png")
    assert why_no_class_folders(class_folders(tmp_path)) == ""


def test_portions_in_classes_are_no_parts_unless_test_images_are_beside_them(tmp_path: Path) -> None:
    for name, portion in product(("cat", "dog"), ("batch_1", "batch_2")):
        fill(tmp_path / name / portion, "0.png")
    assert why_no_class_folders(class_folders(tmp_path)) == ""
    fill(tmp_path / "dog" / "test", "0.png")
    assert "in dog/" in why_no_class_folders(class_folders(tmp_path))


def test_classes_that_may_be_one_folder_further_down_are_told(tmp_path: Path) -> None:
    """Regression: ``bolt.read_folder`` said nothing of them, unlike the commands."""
    for part, name in product(("colour", "grey"), ("cat", "dog", "fox")):
        fill(tmp_path / part / name, "0.png")
    with pytest.warns(UserWarning, match=r"sub-folders: 2, such as colour with cat, dog, \.\.\.; if"):
        assert bolt.read_folder(tmp_path)[2] == ["colour", "grey"]
    (tmp_path / "empty" / "x").mkdir(parents=True)
    assert "sub-folders: 2, such as colour" in str(unused_notes(tmp_path, [tmp_path]))
    fill(tmp_path / "grey" / "dog" / "masks", "0.png")
    fill(tmp_path / "grey", "0.png")
    said = "3 images in sub-folders beside images of their class: used like these, such as grey/cat/"
    assert said in unused_notes(tmp_path, [tmp_path])


def test_archives_are_called_so(tmp_path: Path) -> None:
    fill(tmp_path / "ware" / "cat", "0.png", "more.ZIP", "old.tar")
    assert unused_notes(tmp_path / "ware", [tmp_path / "ware"]) == [
        "2 archives: not used; unpack those that hold images"
    ]
    fill(tmp_path / "packed", "b.zip", "a.7z")
    assert how_to_lay_out(tmp_path / "packed") == "unpack a.7z first"
    assert how_to_lay_out(tmp_path / "ware") == "put the images of each class into a folder of its own"


def test_what_lies_beside_the_classes_and_the_parts_is_counted(tmp_path: Path) -> None:
    """Earlier, images beside class folders and other unused files were left out without a note."""
    for part in ("train", "test"):
        fill(tmp_path / "ware" / part / "cat", "0.png")
    fill(tmp_path / "ware" / "train", "1.png", "notes.txt")
    fill(tmp_path / "ware", "2.png", "3.heif", "._4.png")
    fill(tmp_path / "ware" / "old", "5.png", "labels.csv")
    (tmp_path / "ware" / "train" / "up").symlink_to("..")
    (tmp_path / "ware" / "test" / "dog").symlink_to("/mnt/photographs/dog")
    (tmp_path / "readme.md").write_text("")
    roots = [tmp_path / "ware" / "train", tmp_path / "ware" / "test"]
    notes = unused_notes(tmp_path, roots)
    assert notes[0] == "old/ is not used: 1 image"
    counts = {note.split(" ", 1)[1].split(":")[0]: note.split(" ")[0] for note in notes[1:]}
    assert counts == {
        "images beside the folders of the classes": "2",
        ".heif file": "1",
        "link to folders": "1",
        "broken link": "1",
        "files without an image suffix": "3",
    }


def test_photographs_of_phones_are_used_or_the_package_that_reads_them_is_named(tmp_path: Path) -> None:
    """Pictures of stereo cameras are images, and those of scanners are counted."""
    cat = fill(tmp_path / "cat", "0.heic", "1.HEIF", "2.heic", "3.MPO", "4.dcm", "5.HIF")
    notes = unused_notes(tmp_path, [tmp_path])
    assert any("1 .dcm file" in note for note in notes)
    assert (cat / "3.MPO") in images_below(cat)
    if ".heic" in image_suffixes():
        assert (len(images_below(cat)), len(notes)) == (5, 1)
    else:
        assert sorted(note.split(" ")[0] for note in notes if "install pillow-heif" in note) == ["1", "1", "2"]


def test_the_library_reads_what_the_commands_read(tmp_path: Path) -> None:
    fill(tmp_path / "Training" / "03-green-plate", "0.png", "._0.png", "1.jfif")
    fill(tmp_path / "Training" / "catBowl", "0.png")
    fill(tmp_path / "Training" / "owl")
    fill(tmp_path / "val" / "catBowl", "0.png")
    with pytest.warns(UserWarning, match="Training|not used|no images") as warned:
        images, labels, names = bolt.read_folder(tmp_path)
    assert (len(images), labels, names) == (3, [0, 0, 1], ["green plate", "cat bowl"])
    said = " ".join(str(warning.message) for warning in warned)
    assert "val/ is not used: 1 image" in said
    assert "owl/ holds no images" in said


def test_masks_beside_their_images_are_counted(tmp_path: Path) -> None:
    """They became images of the class, without a word."""
    fill(tmp_path / "with_mask", "a (1).png", "a (1)_mask.png", "a (1)_mask_1.png", "b-seg.png", "c_mask.png")
    fill(tmp_path / "mask", "mask.png", "_mask.png", "b_2.png", "b.png")
    fill(tmp_path / "mask" / "Masks", "b.png")
    fill(tmp_path / "cup", "0_rgb.png", "0_depth.png", "in_depth.png")
    fill(tmp_path / "cup" / "cup GT", "0.png")
    fill(tmp_path / "cup_masks", "0.png")
    assert [note for note in unused_notes(tmp_path, [tmp_path]) if "mask" in note] == [
        "6 images that may be masks or depth maps, by name or folder: used like images; move them elsewhere"
    ]


@pytest.mark.parametrize("inner", ["train test", "Training val Testing", "images masks"])
def test_parts_inside_the_classes_are_not_mixed(inner: str, tmp_path: Path) -> None:
    """The test images of CLASS/test/ became training images."""
    for name in inner.split():
        for kind in ("cat", "dog"):
            fill(tmp_path / kind / name, "0.png")
    with pytest.raises(ValueError, match=r"in cat/, .* look like"):
        bolt.read_folder(tmp_path)
