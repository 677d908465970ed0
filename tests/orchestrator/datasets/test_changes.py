"""Images that changed after ``data add`` are noticed before anything is measured, and named."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from bolt.clip.input_size import InputSize
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import build
from orchestrator.artifacts.support_images import SupportImages
from orchestrator.catalog import DatasetEntry, dataset_ref, load_catalog
from orchestrator.cli.app import app
from orchestrator.core.settings import RunSettings
from orchestrator.datasets import changes as module
from orchestrator.datasets.adding import DatasetOptions, add_dataset
from orchestrator.datasets.changes import changed_data, changes, checksums_file, record_checksums
from orchestrator.grid import load_grid
from orchestrator.planning.checks import check_inputs
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.identity import file_digest
from tests.helpers.photographs import write_photographs
from tests.helpers.small_archives import tar_of

MINE = "mine.yaml"


@pytest.fixture
def ware(tmp_path: Path) -> DatasetEntry:
    """Add a dataset of three classes with 5 training and 2 test images each to ``mine.yaml``."""
    write_photographs(tmp_path / "ware" / "train", 5)
    write_photographs(tmp_path / "ware" / "test", 2, 5)
    return add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions()).entry


def test_a_command_that_is_killed_leaves_no_entry_without_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    write_photographs(tmp_path / "ware", 5)
    monkeypatch.setattr("orchestrator.datasets.adding.record_checksums", killed)
    with pytest.raises(KeyboardInterrupt):
        add_dataset(tmp_path / "ware", [tmp_path / MINE], DatasetOptions())
    assert not (tmp_path / MINE).exists()


def shell(folder: Path, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True)


REMOVE_IMAGE = "rm train/BlueBottle/003.jpg"
RENAME_CLASS = "mv train/red_mug train/pink_mug; mv test/red_mug test/pink_mug"
BREAK_IMAGE = "truncate -s -500 train/BlueBottle/003.jpg"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("rm -r test/red_mug", ["2 test images removed", "test/red_mug/005.jpg"]),
        ("rm -r */red_mug", ["class 'red mug' is not there any more", "5 train images removed"]),
        (RENAME_CLASS, ["class 'red mug' is not there any more", "class 'pink mug' was added"]),
        (REMOVE_IMAGE, ["1 train image removed: train/BlueBottle/003.jpg"]),
        (BREAK_IMAGE, ["other content: train/BlueBottle/003.jpg", "003.jpg cannot be decoded"]),
    ],
)
def test_what_changed_is_named(ware: DatasetEntry, tmp_path: Path, change: str, named: list[str]) -> None:
    assert changed_data(ware, tmp_path, MINE) is None
    shell(tmp_path / "ware", change)
    error = str(changed_data(ware, tmp_path, MINE))
    for text in [*named, f"data add {tmp_path / 'ware'} --name ware --catalog mine.yaml --replace"]:
        assert text in error


@pytest.mark.usefixtures("ware")
def test_a_changed_dataset_is_neither_verified_nor_run(tmp_path: Path) -> None:
    shell(tmp_path / "ware", REMOVE_IMAGE)
    where = ["--catalog", str(tmp_path / MINE), "--data-root", str(tmp_path)]
    verified = CliRunner().invoke(app, ["data", "verify", "ware", *where])
    assert verified.exit_code == 1
    assert "1 train image removed: train/BlueBottle/003.jpg" in " ".join(verified.output.split())
    catalog = load_catalog([tmp_path / MINE])
    grid = load_grid("own", catalog, set_=["datasets=[ware]", "shots=1"], data_root=tmp_path)
    with pytest.raises(UserError, match="dataset ware do not agree"):
        check_inputs(make_plan(grid, catalog, Store(tmp_path / "runs"), tmp_path))


def test_files_of_equal_size_that_are_swapped_are_noticed(tmp_path: Path) -> None:
    for shift, name in enumerate(("one", "two")):
        (tmp_path / "plain" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (20, 20), 40 * number + 20 * shift).save(tmp_path / "plain" / name / f"{number}.bmp")
    entry = add_dataset(tmp_path / "plain", [tmp_path / MINE], DatasetOptions()).entry
    shell(tmp_path / "plain", "mv one .other; mv two one; mv .other two")
    assert any("10 of 10 images have other content" in line for line in changes(entry, tmp_path))


def test_shards_that_were_written_anew_are_noticed(tmp_path: Path) -> None:
    """Shards with other labels have the same sizes, so the results with the old labels counted as finished."""
    write_photographs(tmp_path / "pictures", 4)
    pictures = sorted((tmp_path / "pictures").glob("*/*.jpg"))

    def write(shift: int) -> None:
        (tmp_path / "ware").mkdir(exist_ok=True)
        for shard in (0, 1):
            content = {}
            for number, path in enumerate(pictures[shard::2]):
                content[f"{shard}-{number}.jpg"] = path.read_bytes()
                content[f"{shard}-{number}.cls"] = str((number + shift) % 3).encode()
            (tmp_path / "ware" / f"{shard}.tar").write_bytes(tar_of(content))

    write(0)
    entry = add_dataset(tmp_path / "ware" / "{0,1}.tar", [tmp_path / MINE], DatasetOptions()).entry
    assert changes(entry, tmp_path) == []
    write(1)
    assert any("images have other content: 0.tar/0-" in line for line in changes(entry, tmp_path))


def test_an_unchanged_file_is_read_once(ware: DatasetEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def digest(path: Path, kind: Any) -> str:
        read.append(path)
        return file_digest(path, kind)

    monkeypatch.setattr(module, "file_digest", digest)
    assert changes(ware, tmp_path) == []
    assert read == []
    os.utime(tmp_path / "ware" / "test" / "red_mug" / "005.jpg", (1, 1))
    assert changes(ware, tmp_path) == []
    assert changes(ware, tmp_path) == []
    assert [path.name for path in read] == ["005.jpg"], "once, and then recorded with its new time"


def test_without_a_record_the_counts_of_the_catalog_count(ware: DatasetEntry, tmp_path: Path) -> None:
    assert record_checksums(ware, tmp_path) == []
    checksums_file(ware, tmp_path).unlink()
    checksums_file(ware, tmp_path).mkdir()
    assert "cannot be written to" in str(record_checksums(ware, tmp_path))
    assert changes(ware, tmp_path) == []
    shell(tmp_path / "ware", REMOVE_IMAGE)
    assert changes(ware, tmp_path) == ["train: catalog 15, data 14"]
    shell(tmp_path / "ware", RENAME_CLASS)
    assert len(changes(ware, tmp_path)) == 1, "a name alone is no count"


def test_replace_accepts_the_images_and_keeps_what_was_edited(ware: DatasetEntry, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    edited = mine.read_text().replace("BlueBottle: blue bottle", "BlueBottle: blue flask")
    mine.write_text(edited.replace("    image_side", "    kin: cups\n    fine_tune_epochs: 3\n    image_side"))
    shell(tmp_path / "ware", "rm -r */red_mug")
    entry = add_dataset(tmp_path / "ware", [mine], DatasetOptions(replace=True, domain="kitchen")).entry
    assert (entry.domain, entry.kin, entry.fine_tune_epochs) == ("kitchen", "cups", 3)
    assert entry.class_names == {"03-green-plate": "green plate", "BlueBottle": "blue flask"}
    assert changed_data(entry, tmp_path, MINE) is None


def test_images_that_are_replaced_by_others_of_equal_size_make_other_cells(ware: DatasetEntry, tmp_path: Path) -> None:
    """Regression: after ``--replace``, the results on the former images still counted."""
    mine, mug = tmp_path / "mine.yaml", tmp_path / "ware" / "train" / "red_mug" / "000.jpg"
    content = mug.read_bytes()

    def replaced() -> str:
        entry = add_dataset(tmp_path / "ware", [mine], DatasetOptions(replace=True)).entry
        return dataset_ref(entry, tmp_path).digest

    before = dataset_ref(ware, tmp_path).digest
    assert replaced() == before, "the images are the same"
    checksums_file(ware, tmp_path).unlink()  # as in a data root that the images were moved to
    assert replaced() == before, "nothing is known of other images"
    at = content.index(b"\xff\xda") + 100
    mug.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    after = replaced()
    assert after == replaced() != before
    mug.write_bytes(content)
    assert replaced() == before == replaced(), "the results on the first images count again"
    mug.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert replaced() == after
    mug.touch()
    assert replaced() == after


def test_the_size_of_support_images_is_planned_from_the_images(ware: DatasetEntry, tmp_path: Path) -> None:
    assert ware.image_side == 70, "80 x 60 pixels, as many as a square of 69.3"
    planned = SupportImages(dataset_ref(ware, tmp_path), seed=1, shots=4)
    size = planned.size_bytes(load_catalog([tmp_path / "mine.yaml"]))
    assert 3 * 4 * 3 * 80 * 60 <= size <= 1.1 * 3 * 4 * 3 * 80 * 60


def test_an_image_that_breaks_after_a_plan_is_named_with_a_working_command(ware: DatasetEntry, tmp_path: Path) -> None:
    settings = RunSettings(str(tmp_path / "runs"), str(tmp_path), catalog_files=(str(tmp_path / MINE),))
    shell(tmp_path / "ware", BREAK_IMAGE)
    with pytest.raises(UserError, match=r"train/BlueBottle/003.jpg: OSError") as failed:
        build(Images(dataset_ref(ware, tmp_path), "train", InputSize(32)), settings)
    words = shlex.split(str(failed.value).splitlines()[-1].partition(": ")[2])
    assert CliRunner().invoke(app, words[3:]).exit_code == 0
    entry = load_catalog([tmp_path / MINE]).datasets["ware"]
    build(Images(dataset_ref(entry, tmp_path), "train", InputSize(32)), settings)


@pytest.mark.parametrize("template", ["a photo", "a {} of {}", "", "a {label}, a {}"])
def test_a_template_has_one_place_for_the_class(tmp_path: Path, template: str) -> None:
    write_photographs(tmp_path / "ware", 5)
    with pytest.raises(UserError, match=r"template|has {label}"):
        add_dataset(tmp_path / "ware", [tmp_path / "mine.yaml"], DatasetOptions(templates=(template,)))


@pytest.mark.parametrize("name", ["gtsrb", "aid", "cifar10"])
def test_a_folder_of_ones_own_is_not_taken_for_the_catalogs_dataset(name: str, tmp_path: Path) -> None:
    write_photographs(tmp_path / name, 6)
    listed = CliRunner().invoke(app, ["data", "list", "--data-root", str(tmp_path)], env={"COLUMNS": "200"})
    (row,) = [line for line in listed.output.splitlines() if line.split()[:1] == [name]]
    assert "other data" in row
    assert f"--name my-{name}" in listed.output
    prepared = CliRunner().invoke(app, ["data", "prepare", name, "--data-root", str(tmp_path), "--yes"])
    assert isinstance(prepared.exception, UserError)
    catalog = load_catalog()
    grid = tmp_path / "g.yaml"
    grid.write_text(
        f"title: G\nblocks:\n- {{track: fewshot, backbones: [tiny-clip], datasets: [{name}], methods: [zero_shot]}}\n"
    )
    plan = make_plan(load_grid(grid, catalog, data_root=tmp_path), catalog, Store(tmp_path / "runs"), tmp_path)
    with pytest.raises(UserError, match=f"is not the dataset {name} of the catalog"):
        check_inputs(plan)
