"""``data add`` and ``data verify``: a user's own images become a catalog entry, or are refused with a reason."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from bolt.clip.image_files import Reading
from orchestrator.catalog import dataset_ref, excluded_images, load_catalog
from orchestrator.cli.app import app
from orchestrator.cli.options import image_reading
from orchestrator.datasets.adding import Added, DatasetOptions, add_dataset
from orchestrator.datasets.class_words import class_words
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.verify import exclude_broken, verify_dataset
from orchestrator.util.errors import UserError
from tests.helpers import command
from tests.helpers.photographs import ORIENTATION, break_file, photograph, write_photographs
from tests.helpers.tiff_files import write_tiff


def add(folder: Path, **options: object) -> Added:
    return add_dataset(folder / "Table ware", [folder / "mine.yaml"], DatasetOptions(**options))  # type: ignore[arg-type]


def refused(folder: Path, message: str, **options: object) -> str:
    """Return the error of an addition that fails. Checks that no entry was written."""
    with pytest.raises(UserError, match=message) as failed:
        add(folder, **options)
    assert not (folder / "mine.yaml").exists()
    return str(failed.value)


def test_bands_that_no_image_has_are_a_wrong_option_and_no_broken_images(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 5)
    said = refused(tmp_path, "there is no band 4", reading=Reading(bands=(4, 3, 2)))
    assert said.endswith("correct --bands")
    assert "--exclude-broken" not in said


def test_class_folders_side_by_side_become_an_entry(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 20)
    (tmp_path / "Table ware" / "red_mug" / "notes.txt").write_text("mine")
    added = add(tmp_path)
    entry = load_catalog([tmp_path / "mine.yaml"]).datasets["table-ware"]
    assert added.entry == entry
    assert entry.class_names == {"03-green-plate": "green plate", "BlueBottle": "blue bottle", "red_mug": "red mug"}
    assert entry.prompts == ("a photo of a {}.",)
    assert (entry.sizes.train, entry.sizes.test, entry.smallest_class) == (48, 12, 16)
    assert entry.splits.recipe == "eighty_twenty"
    assert not entry.exif_rotation
    assert added.data_root == tmp_path
    assert added.notes == ("1 file without an image suffix: not used",)
    raw = open_dataset(entry, tmp_path)
    assert raw.class_names == ("green plate", "blue bottle", "red mug")
    assert (len(raw.train), len(raw.test)) == (48, 12)


def test_a_folder_of_images_may_be_called_like_a_tar_file(tmp_path: Path) -> None:
    """Regression: its digest was asked for, as that of several tar files is. And ``..`` was no folder with a name."""
    write_photographs(tmp_path / "ware.tar", 3)
    added = add_dataset(tmp_path / "ware.tar" / "red_mug" / "..", [tmp_path / "mine.yaml"], DatasetOptions())
    assert (added.entry.contents, added.entry.route.place(added.data_root, "")) == ("", tmp_path / "ware.tar")


def test_datasets_that_are_added_at_the_same_time_are_all_in_the_catalog(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    names = [f"ware-{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        assert len(list(pool.map(lambda name: add(tmp_path, name=name), names))) == len(names)
    assert load_catalog([tmp_path / "mine.yaml"]).datasets.keys() >= {*names}


def test_datasets_with_the_same_images_are_no_sources_of_each_other(tmp_path: Path) -> None:
    """Regression: a source model had learned from the test images of its target."""
    write_photographs(tmp_path / "Table ware", 5)
    shutil.copytree(tmp_path / "Table ware", tmp_path / "copy")
    write_photographs(tmp_path / "other", 5, 5)
    add(tmp_path)
    copy, again, other = (
        add_dataset(tmp_path / name, [tmp_path / "mine.yaml"], DatasetOptions()) for name in ("copy", "copy", "other")
    )
    assert (copy.entry.images_of, other.entry.images_of) == (("table-ware",), ())
    assert copy.notes[-1].startswith("images that table-ware has as well: 15; ")
    shutil.copytree(tmp_path / "Table ware", tmp_path / "both")
    shutil.copytree(tmp_path / "other", tmp_path / "both", dirs_exist_ok=True)
    both = add_dataset(tmp_path / "both", [tmp_path / "mine.yaml"], DatasetOptions()).entry
    assert both.images_of == ("table-ware", "copy", "other"), "each of them, although two of them share nothing"
    assert again.entry == copy.entry


def test_train_and_test_folders_keep_their_parts(tmp_path: Path) -> None:
    for part, count, first in (("train", 4, 0), ("test", 2, 4), ("validation", 1, 6)):
        write_photographs(tmp_path / "Table ware" / part, count, first)
    added = add(tmp_path, templates=("a picture of a {}.",), title="Tableware", mirrorable=False, name="ware")
    entry = load_catalog([tmp_path / "mine.yaml"]).datasets["ware"]
    assert (entry.sizes.train, entry.sizes.test, entry.splits.recipe) == (12, 6, "official")
    assert (entry.prompts, entry.title, entry.mirrorable) == (("a picture of a {}.",), "Tableware", False)
    assert added.notes[0].startswith("validation/ is not used: ")
    assert "has 4 training images: k can be 1, 2, 4" in added.notes[1]


def test_images_with_an_exif_rotation_are_rotated(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 5)
    turned = photograph("red_mug", 0)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    turned.save(tmp_path / "Table ware" / "red_mug" / "000.jpg", exif=exif)
    added = add(tmp_path)
    assert added.entry.exif_rotation
    assert any("EXIF rotation" in note for note in added.notes)


def write_reflectances(folder: Path) -> None:
    """Write two classes of satellite images of four bands: red 200, green 400, blue 600, near infrared 800 to 3,000."""
    for name, infrared in (("bare", 800), ("wood", 3000)):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((6, 6, 4), (200, 400, 600, infrared), np.uint16)
            pixels[0, 0] = number  # so that none is a copy
            write_tiff(folder / name / f"{number}.tif", pixels, 2, [0])


def test_measured_images_are_read_in_the_stated_bands_and_range(tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    write_reflectances(tmp_path / "Table ware")
    notes = add(tmp_path, name="plain").notes
    assert any("--range LOW,HIGH" in note for note in notes)
    assert any("bands" in note and "10 of 10 images" in note for note in notes)
    added = add(tmp_path, reading=image_reading("4,3,2", "0,3000"))
    assert (added.entry.bands, added.entry.range) == ((4, 3, 2), (0, 3000))
    assert not any("range" in note or "bands" in note for note in added.notes)
    raw = open_dataset(added.entry, tmp_path)
    assert raw.train.read(len(raw.train) - 1).getpixel((3, 3)) == (255, 51, 34)
    assert add(tmp_path, replace=True).entry.reading == added.entry.reading
    plain = added.entry.model_copy(update={"bands": None})
    assert dataset_ref(plain, tmp_path) != dataset_ref(added.entry, tmp_path)


@pytest.mark.parametrize(
    ("bands", "range_", "where"),
    [
        ("4,3", None, "--bands"), ("0,1,2", None, "--bands"), ("red", None, "--bands"), ("", None, "--bands"),
        (None, "3000", "--range"), (None, "5,5", "--range"), (None, "0,inf", "--range"), (None, "nan,1", "--range"),
    ],
)  # fmt: skip
def test_bands_and_ranges_that_mean_nothing_are_refused(bands: str | None, range_: str | None, where: str) -> None:
    with pytest.raises(UserError) as refused:
        image_reading(bands, range_)
    assert refused.value.where == where


def test_an_image_in_both_parts_is_reported(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware" / "train", 16)
    write_photographs(tmp_path / "Table ware" / "test", 2, 16)
    shutil.copy(tmp_path / "Table ware/train/red_mug/003.jpg", tmp_path / "Table ware/test/red_mug/copy.jpg")
    (note,) = add(tmp_path).notes
    assert note.splitlines()[1:] == ["    test/red_mug/copy.jpg (red mug) = train/red_mug/003.jpg (red mug)"]


WORDS = """folder;word;sentence
red_mug;crimson mug;A mug with a red glaze.;"a {}; its handle is round"
RED MUG;;Seen from above.
nothing;no class
"""


def test_a_table_gives_words_and_sentences(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    (tmp_path / "words.csv").write_text(WORDS, encoding="utf-8-sig")
    added = add(tmp_path, words=tmp_path / "words.csv")
    sentences = added.entry.prompts
    assert isinstance(sentences, dict)
    assert isinstance(added.entry.class_names, dict)
    assert added.entry.class_names["red_mug"] == "crimson mug"
    assert sentences["crimson mug"] == ("A mug with a red glaze.", "a {}; its handle is round", "Seen from above.")
    assert {*sentences.values()} == {sentences["crimson mug"], ("a photo of a {}.",)}
    assert "without a word" in added.notes[0]
    assert "'nothing'" in added.notes[1]
    again = add(tmp_path, replace=True)
    assert (again.entry.prompts, again.entry.class_names) == (sentences, added.entry.class_names)


@pytest.mark.parametrize(
    ("table", "message"),
    [("elsewhere,x\n", "names no class"), ("red_mug,a\nred_mug,b\n", "two words, 'a' and 'b'"), ("", "names no class"),
     ("class,prompt\nred_mug,a photo of a mug\n", "is a sentence, 'a photo of a mug'(.|\n)*red_mug,,a photo of a mug"),
     ("red_mug,It is red and round.\n", "is a sentence")],
)  # fmt: skip
def test_a_wrong_table_of_words_is_refused(table: str, message: str, tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    (tmp_path / "words.csv").write_text(table)
    refused(tmp_path, message, words=tmp_path / "words.csv")


def test_two_classes_with_equal_words_are_both_named(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    shutil.copytree(tmp_path / "Table ware" / "red_mug", tmp_path / "Table ware" / "RedMug")
    refused(tmp_path, "the classes 'RedMug' and 'red_mug' would both be called 'red mug'")
    with pytest.raises(UserError, match="'1_cat' and '1 cat'"):
        class_words(["1_cat", "1 cat"])


# name -> (folders with photographs, what is removed of them, a further file, message)
UNUSABLE: dict[str, tuple[str, str, str, str]] = {
    "an empty class": (".", "", "empty/readme.txt", "class folders without images: empty"),
    "one class": (".", "03-green-plate BlueBottle", "", "only one class, 'red_mug'"),
    "no test part": ("train val", "", "", "there is train/ but no test/; the other folders are val"),
    "no test images": ("train test", "test/red_mug", "", "class folder 'red_mug' is in train/ but not in test/"),
    "no training images": ("train test", "train/red_mug", "", "class folder 'red_mug' is in test/ but not in train/"),
    "one image": (".", "red_mug/000.jpg red_mug/001.jpg", "", "class 'red mug' has too few images"),
    "loose images": ("", "", "1.jpg", "the folder holds 1 images and no class folders"),
    "nothing": ("", "", "readme.txt", "the folder holds no class folders"),
    "no such folder": ("", "", "", "there is no "),
    "parts of other names": ("seg_train/seg_train seg_test/seg_test", "", "", "look like parts of a split"),
    "a copy in itself": (". copy", "", "", "copy/ holds 03-green-plate/ and BlueBottle/, which are beside it too"),
    "unsorted test images": ("train", "", "test/1.jpg", "test/ has no class folders, but train/ has"),
    "an image left over": ("train test", "", "test/1.jpg", "test/ has images beside its class folders\n  sort its"),
    "datasets": ("aid/train aid/test dtd/train", "", "", "folder of datasets(.|\n)*Table ware/aid"),
    "a folder too high": ("ware", "", "", "if its sub-folders .03-green-plate, BlueBottle, red_mug. are the"),
    "a folder too deep": ("train/images test/images", "", "", "are the classes, move them one folder up"),
    "only raw pictures": (".", "", "cat/1.pef", "1 .pef file: not used, because Pillow does not read them"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_path_without_a_usable_dataset_is_refused(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "Table ware"
    parts, removed, file, message = UNUSABLE[case]
    for part in parts.split():
        write_photographs(folder / part, 3)
    for path in (folder / name for name in removed.split()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if file:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        photograph("red_mug", 0).save(folder / file, "JPEG")
    refused(tmp_path, message)


@pytest.mark.parametrize("names", [("Red_Mug", "red mug"), ("café", "cafe\u0301")])
def test_two_spellings_of_a_class_folder_are_told(names: tuple[str, str], tmp_path: Path) -> None:
    for part, name in zip(("train", "test"), names, strict=True):
        write_photographs(tmp_path / "Table ware" / part, 3)
        (tmp_path / "Table ware" / part / "red_mug").rename(tmp_path / "Table ware" / part / name)
    refused(tmp_path, re.escape(f"test/ has {names[1]!a}, and train/ has {names[0]!a}; rename one of them"))


@pytest.mark.parametrize("place", ["1.jpg", "images/1.jpg", "train/1.jpg test/1.jpg"])
def test_a_table_beside_the_images_is_pointed_to(place: str, tmp_path: Path) -> None:
    for path in (tmp_path / "Table ware" / name for name in place.split()):
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph("red_mug", 0).save(path)
    table = tmp_path / "Table ware" / "labels.csv"
    table.write_text("path,label\n")
    refused(tmp_path, re.escape(f"if labels.csv lists the images' classes: data add '{table}'"))


def test_all_parquet_files_of_a_folder_are_pointed_to(tmp_path: Path) -> None:
    """Regression: the message named the file of the training images alone."""
    folder = tmp_path / "Table ware" / "data"
    folder.mkdir(parents=True)
    (folder / "train.parquet").touch()
    refused(tmp_path, re.escape(f"data add '{folder}'/*.parquet"))


def test_an_existing_name_is_refused(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    text = refused(tmp_path, "there is a dataset 'mnist' already, in grids/datasets/general.yaml", name="mnist")
    assert "--name my-mnist" in text
    refused(tmp_path, "'Table ware' may hold lower-case letters.*as in 'table-ware'", name="Table ware")
    add(tmp_path)
    with pytest.raises(UserError, match="there is a dataset 'table-ware' already"):
        add(tmp_path, title="Other")
    (tmp_path / "Table ware" / "red_mug" / "000.jpg").unlink()
    with pytest.raises(UserError, match="there is a dataset 'table-ware' already"):
        add(tmp_path)


@pytest.mark.parametrize("moment", ["remember", "write_grid_file"])
def test_a_killed_command_is_finished_by_the_same_command(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for --replace, because the entry was there; ``bolt.yaml`` and the grid file were not."""
    write_photographs(tmp_path / "ware", 3)
    monkeypatch.chdir(tmp_path)

    def killed(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(f"orchestrator.cli.project.{moment}", killed)
        with pytest.raises(RuntimeError):
            command.invoke("data", "add", "ware")
    before = (tmp_path / "catalog.yaml").read_bytes()
    assert not (tmp_path / "ware.yaml").exists()
    said = command.invoke("data", "add", "ware")
    assert "ware: 3 classes, 6 training images, 3 test images" in said
    assert "`data verify ware` checks them again" in said, "the killed command may not have told of copies"
    assert (tmp_path / "catalog.yaml").read_bytes() == before
    assert "1 to do" in command.invoke("plan", "ware.yaml", "--only", "method=zero_shot")


def test_unreadable_images_are_listed_and_excluded_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "Table ware"
    write_photographs(folder, 10)
    break_file(folder / "red_mug" / "004.jpg")
    (folder / "BlueBottle" / "000.jpg").write_bytes(b"")
    (folder / "BlueBottle" / "huge.ppm").write_bytes(b"P6\n60000 60000\n255\n")
    text = refused(tmp_path, "3 of 31 images cannot be decoded")
    for expected in ("red_mug/004.jpg: OSError", "BlueBottle/000.jpg: UnidentifiedImageError", "--exclude-broken"):
        assert expected in text
    assert "BlueBottle/huge.ppm: DecompressionBombError: Image size (3600000000 pixels)" in text
    entry = add(tmp_path, exclude_broken=True).entry
    excluded = {"BlueBottle/000.jpg", "BlueBottle/huge.ppm", "red_mug/004.jpg"}
    assert set(excluded_images(entry, tmp_path)) == excluded
    raw = open_dataset(entry, tmp_path)
    assert len(raw.train) + len(raw.test) == 31 - 3
    assert (entry.sizes.train, entry.sizes.test) == (len(raw.train), len(raw.test))
    assert verify_dataset(entry, raw, tmp_path).broken == ()
    for name in ("tab\t.jpg", "line\x85.jpg", os.fsdecode(b"latin\xe9.jpg")):
        (folder / "red_mug" / name).write_bytes(b"")
        with pytest.raises(UserError, match="so it cannot be listed"):
            add(tmp_path, exclude_broken=True, name="other")
        (folder / "red_mug" / name).unlink()
    for path in (folder / "red_mug").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no training image of class 'red mug' can be read"):
        add(tmp_path, exclude_broken=True, name="other")


def test_verify_counts_and_lists_and_keeps_the_other_images_in_their_part(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 10)
    entry = add(tmp_path).entry
    whole, identity = open_dataset(entry, tmp_path), dataset_ref(entry, tmp_path)
    (tmp_path / "table-ware.excluded.txt").write_text("\n")
    assert dataset_ref(entry, tmp_path) == identity, "an empty list excludes nothing"
    origin = whole.train.origin(5)
    path = tmp_path / "Table ware" / origin
    path.write_bytes(b"\0" * path.stat().st_size)  # the same size: nothing but decoding tells
    found = verify_dataset(entry, whole, tmp_path)
    assert [(broken.part, broken.origin) for broken in found.broken] == [("train", origin)]
    assert (found.raw.class_sizes("train"), found.raw.class_sizes("test")) == ([8, 8, 8], [2, 2, 2])
    exclude_broken(found, tmp_path)
    left = open_dataset(entry, tmp_path)
    kept = [i for i in range(len(whole.train)) if i != 5]
    assert [left.train.origin(i) for i in range(len(left.train))] == [whole.train.origin(i) for i in kept]
    assert np.array_equal(left.test.indices, whole.test.indices)
    assert dataset_ref(entry, tmp_path) != identity
    again = verify_dataset(entry, left, tmp_path)
    assert (again.broken, again.excluded) == ((), 1)
    assert again.differs == ("train: catalog 24, data 23",)


def test_exit_codes_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = str(tmp_path / "mine.yaml")
    write_photographs(tmp_path / "ware", 5)
    monkeypatch.chdir(tmp_path)

    def check(code: int, said: str, *words: str) -> None:
        done = CliRunner().invoke(app, ["data", *words, "--catalog", mine])
        assert done.exit_code == code, done.output
        assert said in done.output.replace(f"{tmp_path}/", "")

    check(0, "grid ware.yaml", "add", str(tmp_path / "ware"))
    assert yaml.safe_load((tmp_path / "ware.yaml").read_text())["blocks"][0]["shots"] == [1, 2, 4]
    break_file(tmp_path / "ware" / "red_mug" / "001.jpg")
    root = ["--data-root", str(tmp_path)]
    check(1, "red_mug/001.jpg", "verify", "ware", *root)
    check(0, "ware.excluded.txt", "verify", "ware", *root, "--exclude-broken")
    check(0, "1 of 1 are", "list", "--domain", "own", *root)
    with pytest.raises(UserError, match="did you mean 'ware'"):
        command.invoke("data", "verify", "waer", "--catalog", mine, *root)


def test_adding_keeps_the_other_entries_of_the_catalog_file(tmp_path: Path) -> None:
    write_photographs(tmp_path / "Table ware", 3)
    text = "# my file\nprompts:\n    mine: ['an old {}.']  # kept\ndomains:\n    old: {title: Old}\n# the end\n"
    (tmp_path / "mine.yaml").write_text(text)
    add(tmp_path, domain="kitchen")
    after = (tmp_path / "mine.yaml").read_text()
    assert all(comment in after for comment in ("# my file", "# kept", "# the end"))
    assert list(yaml.safe_load(after)["domains"]) == ["old", "kitchen"]
    (tmp_path / "mine.yaml").write_text(after.replace("datasets:", "datasets:  # mine"))
    add(tmp_path, domain="kitchen", title="Cups", replace=True)
    assert "# mine" in (tmp_path / "mine.yaml").read_text()
    assert load_catalog([tmp_path / "mine.yaml"]).datasets["table-ware"].title == "Cups"
    assert load_catalog([tmp_path / "mine.yaml"]).domains["kitchen"].title == "Kitchen"
