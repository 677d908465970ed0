"""Copies of pictures: which are found in drawn pictures, and what is said of them."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from orchestrator.datasets.adding import DatasetOptions, add_dataset
from orchestrator.datasets.copies import facing, find_copies, small_version
from orchestrator.datasets.verify import ImageCheck, copy_notes
from orchestrator.drawn_world.drawing import draw_split


@cache
def drawn(task: str, count: int) -> list[Image.Image]:
    """The first training pictures of a drawn task."""
    return [Image.fromarray(pixels) for pixels in draw_split(task, "train")[0][:count]]


def groups(images: list[Image.Image]) -> list[list[int]]:
    return find_copies([image.tobytes() for image in images], [small_version(image) for image in images])


def _jpeg(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.resize((96, 96), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=60)
    return Image.open(stream)


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "compressed": _jpeg,
    "larger": lambda image: image.resize((80, 80), Image.Resampling.LANCZOS),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "cropped": lambda image: image.crop((1, 1, 31, 31)),
    "cropped on one side": lambda image: image.crop((0, 0, 31, 32)),
    "cropped on three sides": lambda image: _jpeg(image.crop((1, 1, 31, 32))),
    "the same pixels": lambda image: image.copy(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("task", ["glyph-digits", "aerial-land"])
def test_changed_copies_are_found_and_different_pictures_are_not(task: str, change: str) -> None:
    images = drawn(task, 150)
    copied = list(range(0, 150, 5))
    found = groups(images + [CHANGES[change](images[n]) for n in copied])
    expected = [[n, 150 + place] for place, n in enumerate(copied)]
    assert all(group in expected for group in found)
    assert len(found) >= 0.95 * len(copied)


@pytest.mark.parametrize("way", Image.Transpose)
def test_mirrored_and_turned_copies_face_the_same_way(way: Image.Transpose) -> None:
    images = drawn("aerial-land", 60)
    small = [facing(small_version(image)) for image in [*images, *(image.transpose(way) for image in images[::10])]]
    names = [bytes([number]) for number in range(len(small))]
    assert find_copies(names, small, cropped=False) == [[10 * place, 60 + place] for place in range(6)]


def test_mirrored_test_images_are_told(tmp_path: Path) -> None:
    """Regression: augmented copies in both parts raised every accuracy without a word."""
    for number, image in enumerate(drawn("aerial-land", 60)):
        path = tmp_path / "ware" / ("train" if number < 50 else "test") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    for label in "ab":  # in another class it may have another meaning
        ImageOps.mirror(drawn("aerial-land", 60)[0]).save(tmp_path / "ware" / "test" / label / "mirrored.png")
    added = add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions())
    assert [note.splitlines()[1:] for note in added.notes if "mirrored or rotated" in note] == [
        ["    test/a/mirrored.png (a) = train/a/0.png (a)"]
    ]


def test_pictures_that_differ_are_no_copies() -> None:
    assert groups([]) == groups(drawn("glyph-inks", 150)) == groups(drawn("aerial-land", 150)) == []
    one, two, *_ = drawn("glyph-inks", 150)
    assert (groups([one, two]), groups([one, two, one])) == ([], [[0, 2]])


def test_many_copies_of_one_picture_are_one_group_and_plain_pictures_are_none() -> None:
    images = drawn("glyph-inks", 150)[:120]
    versions = [images[7].resize((side, side), Image.Resampling.LANCZOS) for side in range(60, 100)]
    plain = [Image.new("RGB", (20, 20), (n, n, 90)) for n in range(0, 200, 40)]
    (group,) = groups(images + versions + plain)
    assert group == [7, *range(120, 160)]


def test_notes_name_both_paths_and_both_labels() -> None:
    picture = ImageCheck("train", "train/hat/1.jpg", "hat")
    other = ImageCheck("train", "train/cap/2.jpg", "cap")
    tested = ImageCheck("test", "test/hat/3.jpg", "hat")
    leak, mixed, again = copy_notes(((picture, other, tested),), 3)
    assert leak.splitlines()[1] == "    test/hat/3.jpg (hat) = train/hat/1.jpg (hat)"
    assert mixed.splitlines()[1] == "    train/hat/1.jpg (hat) = train/cap/2.jpg (cap)"
    assert again.endswith(": 1")
    assert copy_notes((), 3) == []


def test_a_turned_photograph_is_a_copy_of_the_upright_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number, pixels in enumerate(draw_split("aerial-land", "train")[0][:4]):
            for part in ("train", "test"):
                folder = tmp_path / "ware" / part / name
                folder.mkdir(parents=True, exist_ok=True)
                changed = np.roll(pixels, 8 * (name == "b"), axis=0)
                changed = changed if part == "train" else changed[:, ::-1]
                Image.fromarray(changed).save(folder / f"{number}.png")
    upright = Image.open(tmp_path / "ware" / "train" / "a" / "0.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "ware" / "train" / "b" / "turned.png", exif=exif)
    notes = add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions()).notes
    (note,) = (note for note in notes if "two labels" in note)
    assert "train/a/0.png (a) = train/b/turned.png (b)" in note
