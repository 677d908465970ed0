"""The user's folder as a dataset: the notes on broken images, in the first run and in a continued run."""

import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from orchestrator.adapt.own_images import OwnImages, as_given, prepare_images
from orchestrator.adapt.request import read_request
from orchestrator.catalog import dataset_ref
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions, add_dataset
from orchestrator.datasets.copies import find_copies, small_version
from orchestrator.drawn_world.drawing import draw_split
from orchestrator.util.errors import UserError
from tests.helpers.photographs import ORIENTATION, break_file, write_photographs


def prepare(
    place: Path,
    options: DatasetOptions,
    *catalog_files: Path,
    data_root: Path | None = None,
    sources: str | None = None,
) -> OwnImages:
    root = None if data_root is None else str(data_root)
    settings = RunSettings(str(place / "runs"), root, catalog_files=tuple(map(str, catalog_files)))
    folder, model, console = place / "ware", place / "model", Console(file=io.StringIO())
    request = read_request(folder, model, "tiny-clip", sources, (), 1.0, "state_dict", options, settings, console)
    return prepare_images(request)


def test_a_broken_first_image_once_emptied_its_class(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 3)
    break_file(tmp_path / "ware" / "red_mug" / "000.jpg")
    images = prepare(tmp_path, DatasetOptions(exclude_broken=True))
    assert sorted(images.raw.class_sizes("train")) == [2, 3, 3]
    assert images.notes[0] == "excluded as unreadable: 1 of 9 images"
    again = prepare(tmp_path, DatasetOptions(exclude_broken=True))
    assert again == images, "what was excluded is said again when the command continues"
    for found in (images, again):  # regression: the text head decoded the broken image, which stood for its class
        assert {found.raw.test.read(position).size for position in range(3)} == {(80, 60)}


def test_the_folder_may_become_a_dataset_of_the_catalog_between_two_runs(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 5)
    assert prepare(tmp_path, DatasetOptions()).entry.name == "ware"
    add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions())
    assert prepare(tmp_path, DatasetOptions(), tmp_path / "mine.yaml").entry.name == "ware-own"
    entry = prepare(tmp_path, DatasetOptions(), tmp_path / "mine.yaml", data_root=tmp_path, sources="own").entry
    assert (entry.name, entry.images_of) == ("ware-own", ("ware",)), "no source has learned from the held-out images"
    shutil.copytree(tmp_path / "ware", tmp_path / "copy")
    add_dataset(tmp_path / "copy", [tmp_path / "mine.yaml"], DatasetOptions())
    entry = prepare(tmp_path, DatasetOptions(), tmp_path / "mine.yaml", data_root=tmp_path, sources="own").entry
    assert entry.images_of == ("ware", "copy"), "also datasets that were added since the last run"
    assert prepare(tmp_path, DatasetOptions()).entry.name == "ware"


@pytest.mark.parametrize("part", ["", "train/", "all/"])
def test_broken_images_are_counted_and_named_as_the_user_sees_them(tmp_path: Path, part: str) -> None:
    write_photographs(tmp_path / "ware" / part, 3)
    break_file(tmp_path / "ware" / part / "red_mug" / "000.jpg")
    with pytest.raises(UserError) as refused:
        prepare(tmp_path, DatasetOptions())
    assert str(refused.value).startswith(f"1 of 9 images cannot be decoded:\n  {part}red_mug/000.jpg: ")


def test_the_list_of_excluded_images_in_the_data_root_is_not_that_of_adapt(tmp_path: Path) -> None:
    """Regression: ``adapt`` left out what ``data add`` had excluded, and wrote its own exclusions into that list."""
    for part in ("train", "test"):
        write_photographs(tmp_path / "ware" / part, 3)
    broken = tmp_path / "ware" / "train" / "red_mug" / "000.jpg"
    break_file(broken)
    add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions(exclude_broken=True))
    with pytest.raises(UserError, match="1 of 18 images cannot be decoded"):
        prepare(tmp_path, DatasetOptions(), data_root=tmp_path)
    listed = (tmp_path / "ware.excluded.txt").read_text()
    break_file(broken.with_name("001.jpg"))
    prepare(tmp_path, DatasetOptions(exclude_broken=True), data_root=tmp_path)
    assert (tmp_path / "ware.excluded.txt").read_text() == listed


def test_what_a_class_holds_instead_of_images_is_said(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 2)
    for path in (tmp_path / "ware" / "red_mug").iterdir():
        path.rename(path.with_suffix(".dcm"))
    with pytest.raises(UserError, match=r"2 \.dcm files: not used"):
        prepare(tmp_path, DatasetOptions())


def test_a_repaired_image_is_used_again(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 3)
    broken = tmp_path / "ware" / "red_mug" / "000.jpg"
    whole = broken.read_bytes()
    break_file(broken)
    prepare(tmp_path, DatasetOptions(exclude_broken=True))
    broken.write_bytes(whole)
    images = prepare(tmp_path, DatasetOptions(exclude_broken=True))
    assert images.raw.class_sizes("train") == [3, 3, 3]
    assert not any("excluded" in note for note in images.notes)


def test_images_of_equal_names_and_sizes_are_another_dataset(tmp_path: Path) -> None:
    """Regression: the features of a former folder of that name counted, so 100 % were promised of a model at 0 %."""
    for name, place in itertools.product(("cat", "dog"), range(2)):
        (tmp_path / "ware" / name).mkdir(parents=True, exist_ok=True)
        colour = (90 * place, 250 if name == "cat" else 3, 60)
        Image.new("RGB", (20, 20), colour).save(tmp_path / "ware" / name / f"{place}.bmp")

    def digest() -> str:
        images = prepare(tmp_path, DatasetOptions())
        return dataset_ref(images.entry, Path(str(images.settings.data_root))).digest

    first = digest()
    cat, dog = tmp_path / "ware" / "cat", tmp_path / "ware" / "dog"
    for old, new in ((cat, tmp_path / "ware" / "x"), (dog, cat), (tmp_path / "ware" / "x", dog)):
        old.rename(new)
    assert digest() != first
    for path in (tmp_path / "ware").rglob("*.bmp"):
        path.touch()
    for old, new in ((cat, tmp_path / "ware" / "x"), (dog, cat), (tmp_path / "ware" / "x", dog)):
        old.rename(new)
    assert digest() == first, "time stamps do not count"


def test_a_new_image_in_a_linked_class_folder_and_a_new_empty_class_are_noticed(tmp_path: Path) -> None:
    write_photographs(tmp_path / "elsewhere", 3)
    (tmp_path / "ware").mkdir()
    for folder in (tmp_path / "elsewhere").iterdir():
        (tmp_path / "ware" / folder.name).symlink_to(folder)
    assert prepare(tmp_path, DatasetOptions()).entry.sizes.train == 9
    mug = tmp_path / "elsewhere" / "red_mug"
    Image.open(mug / "000.jpg").rotate(90).save(mug / "new.jpg")
    assert prepare(tmp_path, DatasetOptions()).entry.sizes.train == 10
    (tmp_path / "ware" / "empty").mkdir()
    with pytest.raises(UserError, match="'empty' holds no images"):
        prepare(tmp_path, DatasetOptions())


def test_a_picture_with_two_labels_counts_once_for_each(tmp_path: Path) -> None:
    """Regression: it counted for its first class only, and 96 % were expected of a model that was right for 50 %."""
    write_photographs(tmp_path / "ware", 3)
    mug, bottle = tmp_path / "ware" / "red_mug", tmp_path / "ware" / "BlueBottle"
    shutil.copy(mug / "000.jpg", mug / "003.jpg")
    shutil.copy(mug / "000.jpg", bottle / "003.jpg")
    images = prepare(tmp_path, DatasetOptions())
    assert [images.origin(position) for position in images.repeated] == ["red_mug/003.jpg"]
    assert sorted(images.pictures) == [3, 3, 4]
    assert images.total - len(images.repeated) == sum(images.pictures)


def test_parts_in_front_of_a_fixed_camera_are_no_copies_of_one_picture(tmp_path: Path) -> None:
    """Regression: the classes "have one picture only", so the first candidate was taken and no accuracy promised."""
    part = draw_split("aerial-land", "train")[0][0].repeat(8, axis=0).repeat(8, axis=1).astype(float)
    generator, shown = np.random.default_rng(0), list[Image.Image]()
    for number, name in enumerate(["good"] * 12 + ["scratch"] * 12):
        pixels = part + generator.normal(0, 2, part.shape)
        if name == "scratch":
            row, column = generator.integers(30, 200, 2)
            pixels[row : row + 2, column : column + 30] = 250
        shown.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
        (tmp_path / "ware" / name).mkdir(parents=True, exist_ok=True)
        shown[-1].save(tmp_path / "ware" / name / f"{number:02}.png")
    shown[3].save(tmp_path / "ware" / "good" / "again.png")
    small = [small_version(image) for image in shown]
    assert len(find_copies([image.tobytes() for image in shown], small)[0]) > 20, "they look alike"
    images = prepare(tmp_path, DatasetOptions())
    assert [[images.origin(n) for n in group] for group in images.copies] == [["good/03.png", "good/again.png"]]
    assert (images.pictures, images.folds) == ([12, 12], 4)
    assert not any("two labels" in note for note in images.notes)


@pytest.mark.parametrize(("videos", "folds"), [(3, 3), (1, 4)])
def test_frames_of_one_video_are_held_out_together(videos: int, folds: int, tmp_path: Path) -> None:
    """Regression: they were in several folds, so 95 % were promised of a model that was right for 40 % of new ones."""
    write_photographs(tmp_path / "ware", 12)
    for name in ("red_mug", "BlueBottle", "03-green-plate"):
        for number in range(12):
            video = number % (videos if name == "red_mug" else 4)
            file = tmp_path / "ware" / name / f"{number:03}.jpg"
            file.rename(file.with_name(f"clip{video}_frame{number:03}.jpg"))
    shutil.copy(tmp_path / "ware" / "red_mug" / "clip0_frame000.jpg", tmp_path / "ware" / "red_mug" / "copy.jpg")
    plate = tmp_path / "ware" / "03-green-plate"
    for number in (4, 8):  # a video in which nothing moves
        shutil.copy(plate / "clip0_frame000.jpg", plate / f"clip0_frame{number:03}.jpg")
    images = prepare(tmp_path, DatasetOptions())
    together = [{images.origin(n) for n in group} for group in images.groups]
    first = {path.relative_to(tmp_path / "ware").as_posix() for path in (tmp_path / "ware/red_mug").glob("clip0_*")}
    assert ({*first, "red_mug/copy.jpg"} in together) == (videos > 1)
    assert images.folds == folds
    assert sorted(images.group_counts) == ([3, 4, 4] if videos > 1 else [4, 4, 12])
    kept = np.delete(images.series_of_each, images.repeated)
    assert len(np.unique(kept)) == sum(images.group_counts)
    (note,) = (note for note in images.notes if "frames of videos" in note)
    assert "held out together" in note
    assert ("'red mug'" in note) == (videos == 1)


def test_only_the_users_images_count_in_the_notes(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 3)
    for path in (tmp_path / "ware").rglob("*.jpg"):
        image = Image.open(path)
        image.getexif()[ORIENTATION] = 6
        image.save(path, exif=image.getexif())
    notes = prepare(tmp_path, DatasetOptions()).notes
    assert "images with an EXIF rotation: 9; they are rotated upright" in notes


def test_paths_are_named_as_the_users_folders_are() -> None:
    text = "copies: 1\n    test/cat/1.png (cat) = train/cat/0.png (cat)"
    given = as_given(text, {"train": "in/Training/", "test": "in/Testing/"})
    assert given == "copies: 1\n    in/Testing/cat/1.png (cat) = in/Training/cat/0.png (cat)"
    assert as_given("train/test/0.png", {"train": "./"}) == "test/0.png"
