"""Decoding, loading from folders, and splits, on real files in real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.images import evaluation_pixels, read_images, training_pixels, write_images
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.splits import split_indices
from orchestrator.errors import UserError

SIZE = 32


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with detail at every scale."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def folder_entry(name: str = "shapes", recipe: str = "official", **changes: object) -> DatasetEntry:
    fields = {
        "name": name,
        "title": name,
        "domain": "real",
        "route": {"kind": "folder", "folder": name},
        "prompts": ["a picture of a {}."],
        "classes": 2,
        "sizes": {"train": 4, "test": 2},
        "splits": {"recipe": recipe},
        "licence": "none",
        **changes,
    }
    return DatasetEntry.model_validate(fields)


def write_folder(
    root: Path, splits: tuple[str, ...], classes: tuple[str, ...] = ("round_thing", "square"), n: int = 10
) -> None:
    for split in splits:
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for index in range(n):
                kind = ("png", "jpg", "bmp")[index % 3]
                picture(20 + index, 30, seed=100 * label + index).save(root / split / name / f"{index}.{kind}")


def test_a_folder_with_its_own_splits(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"))
    raw = open_dataset(folder_entry(), tmp_path)
    assert raw.class_names == ("round thing", "square")
    assert (len(raw.train), len(raw.test)) == (20, 20)
    assert raw.train.labels.tolist() == [0] * 10 + [1] * 10
    assert raw.train.read(0).size == (20, 30)
    assert raw.train.origin(0).endswith("train/round_thing/0.png")


def test_a_folder_that_a_recipe_splits(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("all",))
    raw = open_dataset(folder_entry(recipe="eighty_twenty"), tmp_path)
    assert np.bincount(raw.train.labels).tolist() == [8, 8]
    assert np.bincount(raw.test.labels).tolist() == [2, 2]
    train = {raw.train.origin(i) for i in range(len(raw.train))}
    test = {raw.test.origin(i) for i in range(len(raw.test))}
    assert not train & test


def test_the_recipe_says_which_part_is_read_where_a_folder_has_both_layouts(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"), n=2)
    write_folder(tmp_path / "shapes", ("all",), n=10)
    assert len(open_dataset(folder_entry(), tmp_path).train) == 4
    assert len(open_dataset(folder_entry(recipe="eighty_twenty"), tmp_path).train) == 16


@pytest.mark.parametrize("recipe", ["eighty_twenty", "eighty_ten_ten", "published"])
def test_splits_are_disjoint_and_the_same_every_time(recipe: str) -> None:
    labels = np.repeat(np.arange(7), 30).astype(np.int64)
    first, second = (split_indices(labels, recipe, "a dataset") for _ in range(2))
    assert all(np.array_equal(first[part], second[part]) for part in first)
    assert not set(first["train"]) & set(first["test"])
    if recipe != "published":
        assert set(np.bincount(labels[first["train"]])) == {24}
        assert not np.array_equal(first["test"], split_indices(labels, recipe, "another")["test"])
    else:
        assert (len(first["train"]), len(first["test"])) == (152, 42)  # 168 less a tenth, and the other fifth


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="no split recipe"):
        split_indices(np.zeros(4, dtype=np.int64), "official", "x")


def test_images_come_back_as_they_were_decoded(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"), n=3)
    part = open_dataset(folder_entry(), tmp_path).train
    write_images(part, lambda image: training_pixels(image, SIZE), tmp_path)
    images = read_images(lambda name: tmp_path / name)
    assert len(images) == 6
    for index in range(6):
        assert np.array_equal(images.image(index).numpy(), training_pixels(part.read(index), SIZE))
    write_images(part, lambda image: evaluation_pixels(image, SIZE), tmp_path)
    batch = read_images(lambda name: tmp_path / name).batch(2, 5)
    assert batch.shape == (3, 3, SIZE, SIZE)
    assert np.array_equal(batch[1].numpy(), evaluation_pixels(part.read(3), SIZE))


def test_every_broken_image_is_named_with_its_reason(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"), n=4)
    good = tmp_path / "shapes/train/square/1.jpg"
    good.write_bytes(good.read_bytes()[:300])
    (tmp_path / "shapes/train/square/2.bmp").write_bytes(b"not an image")
    part = open_dataset(folder_entry(), tmp_path).train
    with pytest.raises(UserError) as caught:
        write_images(part, lambda image: evaluation_pixels(image, SIZE), tmp_path)
    message = str(caught.value)
    assert "2 of 8 images" in message
    assert "square/1.jpg" in message
    assert "square/2.bmp" in message


def test_an_empty_class_folder_is_an_error(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"))
    (tmp_path / "shapes/train/triangle").mkdir()
    with pytest.raises(UserError, match="no images"):
        open_dataset(folder_entry(), tmp_path)


def test_a_class_that_only_the_test_split_has_is_an_error(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"))
    (tmp_path / "shapes/test/triangle").mkdir()
    with pytest.raises(UserError, match="triangle"):
        open_dataset(folder_entry(), tmp_path)


def test_one_class_is_an_error(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"), classes=("square",))
    with pytest.raises(UserError, match="nothing to tell apart"):
        open_dataset(folder_entry(), tmp_path)


def test_class_words_come_from_the_catalog_by_folder_name(tmp_path: Path) -> None:
    write_folder(tmp_path / "shapes", ("train", "test"))
    words = {"square": "a box", "round_thing": "a ball"}
    assert open_dataset(folder_entry(class_names=words), tmp_path).class_names == ("a ball", "a box")
    wrong = {"square": "a box", "ball": "a ball"}
    with pytest.raises(UserError, match="round_thing"):
        open_dataset(folder_entry(class_names=wrong), tmp_path)


def test_a_missing_folder_says_which_option_gives_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data-root"):
        open_dataset(folder_entry(), None)
    with pytest.raises(UserError, match="shapes"):
        open_dataset(folder_entry(), tmp_path)
