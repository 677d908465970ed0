"""Every real dataset is read from files in its real format, and divided as the published code divides it."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch.utils.data import TensorDataset, random_split

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes import READERS
from orchestrator.datasets.splits import split_indices, split_manifest
from orchestrator.util.errors import UserError
from tests.helpers import formats
from tests.helpers.dataset_table import BENCHMARK, markdown_notes, markdown_table
from tests.helpers.small_archives import entry_of


@cache
def catalog() -> Catalog:
    return load_catalog()


REAL = [entry.name for entry in catalog().datasets.values() if entry.domain in BENCHMARK]
GREY = ("mnist", "fashionmnist", "kmnist", "emnist", "emnist_balanced")
WORDS = {
    "dtd": {"thing 003"},
    "gtsrb": {"stop"},
    "svhn": {"0", "9"},
    "oxford_pets": {"Great Breed 01"},
    "flowers102": {"colt's foot"},
    "pcam": {"lymph node"},
    "fashionmnist": {"Ankle boot"},
    "rendered_sst2": {"negative", "positive"},
    "emnist": {"7"},
    "emnist_balanced": {"small letter a", "capital letter A"},
    "fgvc_aircraft": {"F/A-18", "707-320"},
    "cub200": {"Black footed Albatross"},
    "country211": {"Andorra", "Zimbabwe"},
    "aid": {"dense residential"},
    "clrs": {"bare land"},
    "eurosat": {"annual crop", "sea or lake"},
    "rsd46_whu": {"parking lot"},
    "rsi_cb128": {"parking lot", "residential area"},
    "rsscn7": {"river or lake", "grass"},
    "sat4": {"barren land"},
    "uc_merced": {"mobile home park"},
    "whu_rs19": {"football field"},
    "imagenet_a": {"goldfish"},
}


def test_every_dataset_of_the_catalog_has_a_writer() -> None:
    assert len(REAL) == 40  # the 37, EMNIST as the paper's table names it, Kuzushiji-MNIST and FER2013
    assert all(name in formats.WRITERS or catalog().dataset(name).route.kind == "huggingface" for name in REAL)


@pytest.mark.parametrize("name", REAL)
def test_a_dataset_is_read_from_files_in_its_format(name: str, tmp_path: Path) -> None:
    entry = catalog().dataset(name)
    with pytest.raises(UserError, match=name):
        open_dataset(entry, tmp_path)
    counts = formats.write(entry, tmp_path / name)
    raw = open_dataset(entry, tmp_path)
    assert len(raw.class_names) == entry.classes
    assert WORDS.get(name, set()) <= set(raw.class_names)
    assert not any("_" in word for word in raw.class_names)
    if "all" in counts:
        assert len(raw.test) == counts["all"] - int(0.8 * counts["all"])
    else:
        assert {"train": len(raw.train), "test": len(raw.test)} == counts
    seen: set[object] = set()
    for part in (raw.train, raw.test):
        for index in range(0, len(part), max(1, len(part) // 100)):
            image = part.read(index)
            assert formats.label_seen(image, in_grey=name in GREY) == part.labels[index]
            assert formats.is_upright(image)
        origins = {part.origin(index) for index in range(len(part))}
        assert len(origins) == len(part)
        assert not origins & seen
        assert not any(str(tmp_path) in origin for origin in origins)
        seen |= origins


def test_the_docs_table_and_notes_match_the_catalog() -> None:
    """``python -m tests.helpers.dataset_table`` prints both."""
    text = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
    entries = [catalog().dataset(name) for name in REAL]
    assert markdown_table(entries) in text
    assert markdown_notes(entries) in text


def test_the_reader_in_the_docs_reads_its_format(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].partition("```")[0], names)
    assert READERS.pop("npz") is names["read_npz"]
    pixels = np.arange(2 * 3 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 3)
    arrays: dict[str, Any] = {f"{part}_images": pixels + first for part, first in (("train", 0), ("test", 100))}
    np.savez(tmp_path / "images.npz", train_labels=[[0], [1]], test_labels=[[1], [0]], **arrays)
    words, parts = names["read_npz"](entry_of(""), tmp_path)
    assert words == ["0", "1"]
    assert parts["test"].labels.tolist() == [1, 0]
    assert parts["test"].origin(1) == "test[1]"
    for part in ("train", "test"):
        assert np.array_equal(np.asarray(parts[part].read(1)), arrays[f"{part}_images"][1])


TOTALS = {
    "aid": 10000, "clrs": 15000, "mlrsnet": 109161, "optimal31": 1860, "patternnet": 30400, "rs_c11": 1232,
    "rsd46_whu": 17516, "rsi_cb128": 36707, "rsscn7": 2800, "sat4": 100000, "siri_whu": 2400, "uc_merced": 2100,
    "whu_rs19": 1005,
}  # fmt: skip
"""Number of images of each remote-sensing dataset that has no train and test part."""


def test_the_published_recipe_equals_two_random_splits_of_torch() -> None:
    found = split_indices(np.zeros(1005, dtype=np.int64), "published", "whu_rs19")
    whole = TensorDataset(torch.arange(1005))
    train, test = random_split(whole, [804, 201], generator=torch.Generator().manual_seed(42))
    kept, _ = random_split(train, [724, 80], generator=torch.Generator().manual_seed(0))
    assert found["test"].tolist() == sorted(test.indices)
    assert found["train"].tolist() == sorted(train.indices[index] for index in kept.indices)


def test_torch_draws_the_same_images_as_the_published_code() -> None:
    """The first image that the published code trains on of MNIST's 60,000, cut with seed 0 as the recipe cuts."""
    whole = TensorDataset(torch.arange(60000))
    kept, _ = random_split(whole, [55000, 5000], generator=torch.Generator().manual_seed(0))
    assert kept.indices[0] == 36044


def test_the_sizes_in_the_catalog_follow_from_the_recipe() -> None:
    remote = {entry.name for entry in catalog().datasets.values() if entry.domain == "remote_sensing"}
    assert remote == TOTALS.keys() | {"eurosat", "resisc45"}  # these two have parts of their own
    for name, total in TOTALS.items():
        entry = catalog().dataset(name)
        assert entry.splits.recipe == "published"
        parts = split_indices(np.zeros(total, dtype=np.int64), "published", name)
        assert {split: len(indices) for split, indices in parts.items()} == entry.sizes.model_dump(), name


@pytest.mark.parametrize("first", [0, 2])
def test_labels_of_no_class_are_refused(first: int, tmp_path: Path) -> None:
    """The labels of Flowers102 count from 1; copies that count from 0 gave every image the class before its own."""
    entry = catalog().dataset("flowers102")
    formats.write(entry, tmp_path / "flowers102")
    base, labels, numbers = tmp_path / "flowers102" / "flowers-102", np.arange(306) // 3 + first, np.arange(1, 307)
    savemat(base / "imagelabels.mat", {"labels": labels[None]})
    savemat(base / "setid.mat", {"trnid": numbers[::3], "valid": numbers[1::3], "tstid": numbers[2::3]})
    with pytest.raises(UserError, match=f"are {first - 1} to {first + 100}, but the 102 classes"):
        open_dataset(entry, tmp_path)


def test_different_splits_have_different_manifests(tmp_path: Path) -> None:
    entry = catalog().dataset("rsscn7")
    formats.write(entry, tmp_path / "rsscn7")
    manifest = split_manifest(entry, open_dataset(entry, tmp_path))
    assert (manifest.dataset, manifest.recipe, manifest.classes) == ("rsscn7", "published", 7)
    assert manifest.counts == {"train": 26, "test": 7}
    assert manifest == split_manifest(entry, open_dataset(entry, tmp_path))
    assert manifest.model_dump()["sha256"] == manifest.sha256
    assert manifest.differs(entry) == ["train: catalog 2016, data 26", "test: catalog 560, data 7"]
    other = entry.model_copy(update={"splits": entry.splits.model_copy(update={"recipe": "eighty_twenty"})})
    assert split_manifest(other, open_dataset(other, tmp_path)).sha256 != manifest.sha256
    formats.put(tmp_path / "rsscn7" / "aGrass" / "one more.jpg", 0)
    assert split_manifest(entry, open_dataset(entry, tmp_path)).sha256["test"] != manifest.sha256["test"]
