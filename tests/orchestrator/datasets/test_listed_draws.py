"""The draws that a lab has on its disk: Dassl's pickles, read without running them, and 2SFS's lists."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bolt.task.support import draw_as_published
from orchestrator.catalog import load_catalog
from orchestrator.catalog.references import draw_files, listed_draw
from orchestrator.datasets.listed_draws import read_draw
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import RawDataset
from orchestrator.util.errors import UserError

NAME, FOLDER = "eleven_dtd", "dtd"


class Datum:
    """Stands for Dassl's class while a pickle is written."""

    def __init__(self, image: str, label: object) -> None:
        self._impath, self._label, self._domain, self._classname = image, label, 0, "word"


@pytest.fixture(scope="module")
def raw(benchmark: Path) -> RawDataset:
    return open_dataset(load_catalog().dataset(NAME), benchmark)


def drawn(raw: RawDataset) -> dict[str, list[int]]:
    """The draw of Dassl's own function, 2 images a class with seed 1."""
    found = draw_as_published({"train": raw.train.labels, "val": raw.validation.labels}, 2, seed=1, code="dassl")
    return {name: positions.tolist() for name, positions in found.items()}


def rows(raw: RawDataset, part: str, other_root: str = "/home/lab/DATA") -> list[tuple[str, int]]:
    """Path on another machine and label of each drawn image of a part."""
    source = {"train": raw.train, "val": raw.validation}[part]
    return [(f"{other_root}/{source.origin(i)}", int(source.labels[i])) for i in drawn(raw)[part]]


WritePickle = Callable[[Path, Any], None]


@pytest.fixture
def write_pickle(monkeypatch: pytest.MonkeyPatch) -> WritePickle:
    """Return a function that writes a pickle as a machine with Dassl does."""

    def write(folder: Path, content: Any) -> None:
        module = ModuleType("dassl.data.datasets.base_dataset")
        module.Datum = Datum  # type: ignore[attr-defined]
        with monkeypatch.context() as with_dassl:
            with_dassl.setattr(Datum, "__module__", module.__name__)
            for name in ("dassl", "dassl.data", "dassl.data.datasets"):
                with_dassl.setitem(sys.modules, name, ModuleType(name))
            with_dassl.setitem(sys.modules, module.__name__, module)
            (folder / "split_fewshot").mkdir(parents=True, exist_ok=True)
            (folder / "split_fewshot" / "shot_2-seed_1.pkl").write_bytes(pickle.dumps(content))

    return write


def dassl_draw(raw: RawDataset) -> dict[str, list[Datum]]:
    return {part: [Datum(*row) for row in rows(raw, part)] for part in ("train", "val")}


def read(raw: RawDataset, folder: Path) -> dict[str, list[int]]:
    found = read_draw(raw, draw_files(folder, 2, 1))
    return {name: positions.tolist() for name, positions in found.items()}


def test_a_pickle_and_lists_give_their_images(raw: RawDataset, tmp_path: Path, write_pickle: WritePickle) -> None:
    write_pickle(tmp_path / "dassl", dassl_draw(raw))
    (tmp_path / "2sfs" / "split_fewshot").mkdir(parents=True)
    for part in ("train", "val"):
        lines = [json.dumps({"_impath": image, "_label": label}) for image, label in rows(raw, part, "dataset")]
        (tmp_path / "2sfs" / "split_fewshot" / f"shot_2-seed_1_{part}.jsonl").write_text("\n".join(lines) + "\n")
    assert read(raw, tmp_path / "dassl") == read(raw, tmp_path / "2sfs") == drawn(raw)


def test_a_flat_folder_is_read(benchmark: Path, raw: RawDataset, tmp_path: Path, write_pickle: WritePickle) -> None:
    root = tmp_path / FOLDER
    shutil.copytree(benchmark / FOLDER, root)
    for folder in list((root / "images").iterdir()):  # classes have files of equal names
        folder.rename(root / folder.name)
    write_pickle(root, dassl_draw(raw))
    flat = open_dataset(load_catalog().dataset(NAME), tmp_path)
    assert flat.train.origin(0).count("/") == 1
    assert read(flat, root) == drawn(raw)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda good: {"train": [Evil()]}, "not Dassl's Datum"),
        (lambda good: {"train": [{"_impath": "a", "_label": 0}]}, "not Dassl's Datum"),
        (lambda good: {"train": [Datum("a.jpg", 0)]}, "a.jpg, which the dataset does not have"),
        (lambda good: {"train": [Datum(good["train"][0]._impath, 1)]}, "the label 1; the dataset has 0"),
        (lambda good: {"train": [Datum("a.jpg", "0")]}, "not a path and a number"),
        (lambda good: {"val": good["val"]}, "no part train"),
        (lambda good: ["train"], "cannot be read"),
    ],
)
def test_no_code_is_run(
    damage: Any, words: str, raw: RawDataset, tmp_path: Path, write_pickle: WritePickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pickle(tmp_path, damage(dassl_draw(raw)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        read_draw(raw, draw_files(tmp_path, 2, 1))
    assert not (tmp_path / "evil").exists()


def test_a_damaged_file_is_named(raw: RawDataset, benchmark: Path, tmp_path: Path, write_pickle: WritePickle) -> None:
    write_pickle(tmp_path, dassl_draw(raw))
    (path,) = draw_files(tmp_path, 2, 1)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="cannot be read"):
        read_draw(raw, (path,))
    with pytest.raises(UserError, match="shot_2-seed_1"):
        draw_files(tmp_path, 4, 1)
    assert listed_draw(load_catalog().dataset(NAME), benchmark, 4, 3) == "absent"
