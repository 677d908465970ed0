"""Decoded splits, class folders and split recipes, on real image files."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels
from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.images import capped_pixels, read_images, write_images
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import Part
from orchestrator.datasets.splits import split_indices
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from tests.helpers.small_archives import entry_of
from tests.helpers.warm_process import run_forked

SIZE = 32
KINDS = ("png", "jpg", "bmp")


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Make a random image with detail at every scale."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def folder_entry(recipe: str = "official", **changes: Any) -> DatasetEntry:
    route = {"kind": "folder", "folder": "shapes"}
    return entry_of("", name="shapes", route=route, splits={"recipe": recipe}, **changes)


def write_folder(root: Path, *splits: str, n: int = 10) -> None:
    for split in splits:
        for label, name in enumerate(("round_thing", "square")):
            (root / "shapes" / split / name).mkdir(parents=True)
            for index in range(n):
                path = root / "shapes" / split / name / f"{index}.{KINDS[index % 3]}"
                picture(20 + index, 30, seed=100 * label + index).save(path)


def test_the_recipe_selects_the_layout_of_a_folder_with_both(tmp_path: Path) -> None:
    write_folder(tmp_path, "train", "test", n=2)
    write_folder(tmp_path, "all")
    assert len(open_dataset(folder_entry(), tmp_path).train) == 4
    assert len(open_dataset(folder_entry(recipe="eighty_twenty"), tmp_path).train) == 16


@pytest.mark.parametrize("recipe", ["eighty_twenty", "eighty_ten_ten", "published"])
def test_splits_are_disjoint_and_repeatable(recipe: str) -> None:
    labels = np.repeat(np.arange(7), 30).astype(np.int64)
    first, second = (split_indices(labels, recipe, "a dataset") for _ in range(2))
    assert all(np.array_equal(first[part], second[part]) for part in first)
    assert not set(first["train"]) & set(first["test"])
    if recipe != "published":
        assert set(np.bincount(labels[first["train"]])) == {24}
        assert not np.array_equal(first["test"], split_indices(labels, recipe, "another")["test"])
    else:
        assert (len(first["train"]), len(first["test"])) == (152, 42)  # 168 less a tenth, and the other fifth


def test_stored_images_equal_decoded_images(tmp_path: Path) -> None:
    write_folder(tmp_path, "train", "test", n=3)
    part = open_dataset(folder_entry(), tmp_path).train
    write_images(part, lambda image: capped_pixels(image, 2 * SIZE), tmp_path)
    images = read_images(lambda name: tmp_path / name)
    assert len(images) == 6
    for index in range(6):
        assert np.array_equal(images.image(index).numpy(), capped_pixels(part.read(index), 2 * SIZE))
    write_images(part, lambda image: evaluation_pixels(image, InputSize(SIZE)), tmp_path)
    batch = read_images(lambda name: tmp_path / name).batch(2, 5)
    assert batch.shape == (3, 3, SIZE, SIZE)
    assert np.array_equal(batch[1].numpy(), evaluation_pixels(part.read(3), InputSize(SIZE)))


def test_an_unreadable_image_stores_nothing_and_the_hint_names_a_command(tmp_path: Path) -> None:
    write_folder(tmp_path, "train", "test", n=30)
    for index in range(0, 30, 2):
        (tmp_path / "shapes/train/square" / f"{index}.{KINDS[index % 3]}").write_bytes(b"GIF89a")
    part, store = open_dataset(folder_entry(), tmp_path).train, Store(tmp_path / "store")
    with pytest.raises(UserError) as caught:
        build_in(store, part)
    assert "15 of 60 images" in str(caught.value)
    assert str(caught.value).count("train/square/") == 15
    assert "square/2.bmp: UnidentifiedImageError" in str(caught.value)
    assert "data verify shapes --exclude-broken" in str(caught.value)
    assert store.artifact(ADDRESS) is None
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


ADDRESS, IDENTITY = "images/shapes--0123abcd", {"kind": "Images", "split": "train"}


def build_in(store: Store, part: Part) -> None:
    """Decode a part into a store, as an artifact's build does."""
    with store.building(ADDRESS, IDENTITY) as builder:
        transform = partial(evaluation_pixels, size=InputSize(SIZE))
        write_images(part, transform, builder.folder, ("shapes",), builder.progress)


CHILD = """
import os, resource, sys
from pathlib import Path
from tests.orchestrator.datasets.test_images import Store, build_in, folder_entry, open_dataset

part, store, how = open_dataset(folder_entry(), Path(sys.argv[1])).train, Store(sys.argv[2]), sys.argv[3]
if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
if how == "read-only" and os.geteuid() == 0:
    os.setuid(65534)
build_in(store, part)
"""


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path, "train", "test")
    done = run_forked([str(tmp_path), str(tmp_path / "store"), "full"], CHILD)
    assert done.returncode != 0
    assert f"{ADDRESS} cannot be built: the disk" in done.stderr
    assert Store(tmp_path / "store").artifact(ADDRESS) is None
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_read_only_store_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:  # tmp_path lies where other users cannot look
        folder = Path(name)
        write_folder(folder, "train", "test", n=3)
        (folder / "store").mkdir(mode=0o555)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555)
        done = run_forked([name, str(folder / "store"), "read-only"], CHILD)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        assert done.returncode != 0
        assert "the store cannot be used" in done.stderr
        assert list((folder / "store").iterdir()) == []


def test_class_words_come_from_the_catalog_by_folder_name(tmp_path: Path) -> None:
    write_folder(tmp_path, "train", "test", n=1)
    words = {"square": "a box", "round_thing": "a ball"}
    assert open_dataset(folder_entry(class_names=words), tmp_path).class_names == ("a ball", "a box")
    with pytest.raises(UserError, match="round_thing"):
        open_dataset(folder_entry(class_names={"square": "a box", "ball": "a ball"}), tmp_path)


def test_the_error_of_a_missing_folder_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data-root"):
        open_dataset(folder_entry(), None)
    with pytest.raises(UserError, match="shapes"):
        open_dataset(folder_entry(), tmp_path)
