"""Datasets of the Hugging Face hub: the needed files of one commit are fetched, and ``data add hf:`` makes an entry."""

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

from orchestrator.catalog import DatasetEntry, load_catalog
from orchestrator.datasets.adding import Added, DatasetOptions, add_dataset
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, needed_files
from orchestrator.datasets.hub_datasets import fetch_layout, hub_name
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.state import StagingArea
from orchestrator.util.errors import UserError
from tests.helpers.file_server import FileServer, hub_answers, serve
from tests.helpers.small_archives import CLASSES, entry_of, picture

QUIET = Console(file=io.StringIO())
COMMIT = hashlib.sha1(b"the commit").hexdigest()
REPO = "owner/pets"


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests reach their own server where a cell of another test has switched downloads off."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


def shard(first: int, labels: str = "label", named: bool = True, values: Any = (0, 1, 0, 1, 0)) -> bytes:
    """Return a parquet file of five images; the column ``labels`` has the classes' names in the hub's metadata."""
    images = [{"bytes": picture(first + i), "path": None} for i in range(5)]
    rows = {"image": images, **{name: list(values) for name in labels.split(",")}}
    names = {name: {"names": list(CLASSES), "_type": "ClassLabel"} for name in labels.split(",")} if named else {}
    features = {"info": {"features": {"image": {"_type": "Image"}, **names}}}
    table = pa.table(rows).replace_schema_metadata({b"huggingface": json.dumps(features).encode()})
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def _two_pictures() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"mask": [picture(0)], "image": [picture(1)], "label": [0]}), stream)
    return stream.getvalue()


TWO_PICTURES = _two_pictures()
CONTENT = {
    "README.md": b"# pets",
    "data/train-00000-of-00002.parquet": shard(0),
    "data/train-00001-of-00002.parquet": shard(5),
    "data/other-00000-of-00001.parquet": shard(50),
}


def answers_of(content: dict[str, bytes]) -> dict[str, Any]:
    return hub_answers("datasets", REPO, COMMIT, content)


@contextmanager
def hub(**answers: Any) -> Iterator[FileServer]:
    """Serve a hub, which huggingface_hub asks instead of the real one."""
    with serve(**answers) as server, pytest.MonkeyPatch.context() as patch:
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        yield server


def hub_entry(url: str) -> DatasetEntry:
    route = {"kind": "huggingface", "repo": REPO, "splits": {"all": "train"}}
    return entry_of(url, route=route)


def staging_in(folder: Path) -> StagingArea:
    return StagingArea(folder / "pets", folder / "downloads", QUIET)


def test_only_the_needed_files_of_one_commit_are_fetched_from_the_hub(tmp_path: Path) -> None:
    with hub(**answers_of(CONTENT)) as server:
        entry = hub_entry(server.url)
        commit, needed = needed_files(entry)
        assert list(needed) == [f"data/train-0000{i}-of-00002.parquet" for i in range(2)]
        revision, checksums = fetch_from_hub(entry, staging_in(tmp_path))
    assert revision == commit == COMMIT
    assert sorted(checksums) == list(needed)
    assert not (tmp_path / "pets" / ".cache").exists()
    raw = open_dataset(entry, tmp_path)
    assert (len(raw.train), len(raw.test), raw.class_names) == (7, 3, CLASSES)


@pytest.mark.parametrize(("label", "says"), [(None, "no label.*\n.*data prepare pets"), (-1, "outside 0 to 1[^@]*$")])
def test_a_catalog_dataset_has_no_advice_for_data_add(label: int | None, says: str, tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "train.parquet").write_bytes(shard(0, values=[0, 1, 0, 1, label]))
    with pytest.raises(UserError, match=says):
        open_dataset(hub_entry("").model_copy(update={"domain": "general"}), tmp_path)


def test_a_hub_file_with_a_wrong_checksum_is_removed(tmp_path: Path) -> None:
    answers, shard_name = answers_of(CONTENT), "data/train-00001-of-00002.parquet"
    name = f"datasets/{REPO}/resolve/{COMMIT}/{shard_name}"
    answers["files"][name] = answers["files"][name][:-1] + b"x"
    with hub(**answers) as server, pytest.raises(UserError, match="has the wrong sha256"):
        fetch_from_hub(hub_entry(server.url), staging_in(tmp_path))
    assert not (tmp_path / "pets" / shard_name).exists()


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [(403, "GatedRepo", "hf auth login"), (404, "RepoNotFound", "there is no such repository")],
)
def test_a_gated_or_missing_repository_names_the_remedy(status: int, code: str, says: str) -> None:
    with hub(files={}, statuses=[status], error_code=code) as server, pytest.raises(UserError, match=says):
        needed_files(hub_entry(server.url))


def add(root: Path, address: str, **options: Any) -> Added:
    find = partial(fetch_layout, address, root / "data", QUIET)
    return add_dataset(hub_name(address), [root / "mine.yaml"], DatasetOptions(**options), find=find)


PARTS = {"train-00000-of-00001.parquet": shard(0), "test-00000-of-00001.parquet": shard(5)}


@pytest.mark.parametrize(
    ("content", "address", "sizes"),
    [
        (PARTS, "", (5, 5)),
        (CONTENT, "@train", (7, 3)),
        (CONTENT, "@train,other", (10, 5)),
        ({"big/train/0000.parquet": shard(0), "big/test/0000.parquet": shard(5), "small/test/0000.parquet": b"x"},
         ":big", (5, 5)),
        ({f"{part}/{name}/{n}.png": picture(n + 10 * (part == "Test")) for part in ("Train", "Test")
          for name in CLASSES for n in range(3)}, "", (6, 6)),
        ({f"{name}/{n}.png": picture(n) for name in CLASSES for n in range(5)}, "", (8, 2)),
    ],
)  # fmt: skip
def test_hub_datasets_are_added(
    tmp_path: Path, content: dict[str, bytes], address: str, sizes: tuple[int, int]
) -> None:
    with hub(**answers_of({"README.md": b"# pets", **content})) as server:
        added = add(tmp_path, f"hf:{REPO}{address}")
        count = len(server.requests)
        again = add(tmp_path, f"hf:{REPO}{address}", replace=True)
        assert len(server.requests) == count
    entry = load_catalog([tmp_path / "mine.yaml"]).datasets["pets"]
    assert entry == added.entry == again.entry
    assert (entry.sizes.train, entry.sizes.test) == sizes
    assert entry.licence == f"see https://huggingface.co/datasets/{REPO}"
    raw = open_dataset(entry, added.data_root)
    assert raw.class_names == CLASSES
    assert raw.train.read(0).size == (40, 40)
    if entry.route.kind == "huggingface":
        assert entry.route.revision == COMMIT


@pytest.mark.parametrize(
    ("content", "address", "expected"),
    [
        (CONTENT, "", "has the splits train, other"),
        (CONTENT, "@test", "has the splits train, other"),
        ({"a/train.parquet": b"", "b/train.parquet": b""}, "", "hf:owner/pets:a or hf:owner/pets:b"),
        ({"train.parquet": b""}, ":c", "has no configuration 'c'"),
        ({"train.parquet": shard(0, "fine,coarse")}, "", "the column of the labels may be fine or coarse"),
        ({"train.parquet": shard(0, "kind", named=False)}, "", "no column of labels"),
        ({"train.parquet": b"PAR1"}, "", "cannot be read as parquet"),
        ({"train.parquet": shard(0), "validation.parquet": shard(5)}, "", "hf:owner/pets@train,validation"),
        ({"train.parquet": shard(0, values=[0, 1, 0, 1, -1])}, "", "-1 often means that an image has no label"),
        ({"train.parquet": shard(0, "y", named=False, values=[0, 1, 0, 1, 0.5])}, "", "the label 0.5 is neither"),
        ({"train.parquet": shard(0, named=False, values=[[0], [1], [0], [1], [0, 1]])}, "", "the label [0] is neither"),
        ({"train.parquet": shard(0, named=False, values=[0, 1, 0, 1, float("nan")])}, "", "1 images have no label"),
        ({"train.parquet": TWO_PICTURES}, "", "the column of the images may be mask or image"),
        ({"images.zip": b""}, "", "holds neither parquet files nor images"),
    ],
)
def test_an_unclear_hub_dataset_is_refused(
    tmp_path: Path, content: dict[str, bytes], address: str, expected: str
) -> None:
    with hub(**answers_of(content)), pytest.raises(UserError) as refusal:
        add(tmp_path, f"hf:{REPO}{address}")
    assert expected in str(refusal.value)
    assert not (tmp_path / "mine.yaml").exists()


def test_labels_without_names_are_numbers_and_a_column_can_be_named(tmp_path: Path) -> None:
    with hub(**answers_of({"train.parquet": shard(0, "kind", named=False)})):
        added = add(tmp_path, f"hf:{REPO}", columns={"label": "kind"})
    assert added.entry.class_names == {"0": "0", "1": "1"}
    assert any("describe an image" in note for note in added.notes)


def test_a_parquet_file_with_images_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "train.parquet").write_bytes(shard(0))
    added = add_dataset(tmp_path / "pets" / "train.parquet", [tmp_path / "mine.yaml"], DatasetOptions())
    raw = open_dataset(added.entry, tmp_path)
    assert (raw.class_names, len(raw.train), len(raw.test)) == (CLASSES, 3, 2)
    for row, label in enumerate(raw.train.labels):
        number = int(raw.train.origin(row).removeprefix("train.parquet[").removesuffix("]"))
        assert label == number % 2
        assert raw.train.read(row).tobytes() == Image.open(io.BytesIO(picture(number))).tobytes()


def test_a_folder_with_something_else_and_a_wrong_address_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "pets").mkdir(parents=True)
    with hub(**answers_of(CONTENT)), pytest.raises(UserError, match="was not fetched from owner/pets"):
        add(tmp_path, f"hf:{REPO}@train")
    with pytest.raises(UserError, match="is no address of a dataset"):
        hub_name("hf:a/b/c")


def test_a_taken_name_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    for n in range(4):
        path = tmp_path / "pets" / CLASSES[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n))
    add_dataset(tmp_path / "pets", [tmp_path / "mine.yaml"], DatasetOptions())
    with hub(**answers_of(CONTENT)) as server, pytest.raises(UserError, match="there is a dataset 'pets' already"):
        add(tmp_path, f"hf:{REPO}@train")
    assert not server.requests


@pytest.mark.e2e
def test_the_command_fetches_and_adds_a_dataset_of_the_hub(tmp_path: Path) -> None:
    with hub(**answers_of(PARTS)) as server:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "data", "add", f"hf:{REPO}", "--data-root", "here"],
            capture_output=True, text=True, cwd=tmp_path, timeout=120,
            env={**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pets: 2 classes, 5 training images, 5 test images" in done.stdout
    assert (tmp_path / "here" / "pets" / "test-00000-of-00001.parquet").is_file()
