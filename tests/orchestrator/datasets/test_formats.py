"""Every real dataset of the catalog is read from files in its real format."""

from functools import cache
from pathlib import Path

import pytest

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.datasets.opening import open_dataset
from orchestrator.util.errors import UserError
from tests.helpers import formats
from tests.helpers.dataset_table import BENCHMARK, markdown_notes, markdown_table


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
    readable = {"huggingface"}
    assert all(name in formats.WRITERS or catalog().dataset(name).route.kind in readable for name in REAL)


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
