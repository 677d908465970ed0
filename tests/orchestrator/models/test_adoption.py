"""Adopted checkpoints as sources: every layout gives the same cells, and unsuitable files are refused."""

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import config_from_shape, to_huggingface
from orchestrator.artifacts.adopted_source import AdoptedSource
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.artifacts.source_model import SourceModel
from orchestrator.artifacts.spec import build
from orchestrator.catalog import Catalog, checkpoint_digest, load_catalog
from orchestrator.catalog.location import grids_folder
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import measure
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.models.adoption import adopt_checkpoints, guess_dataset, verify_checkpoints
from orchestrator.models.stored_sources import source_table
from orchestrator.planning.checks import check_inputs
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.helpers.file_server import hub_answers, serve
from tests.helpers.waiting import TIMEOUT
from tests.orchestrator.conftest import World, build_world

ADOPTED, MISSING, NO_NAME = "someone/clip-tiny_glyph-inks", "someone/else", "../etc"
TARGET = "glyph-kinds"
SOURCES = ("glyph-inks", "glyph-capitals", "aerial-roofs", "glyph-digits")  # which other tests fine-tune, too
GRID = f"""
title: Adoption
fine_tuning: {{epochs: 1, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}}
blocks:
  - track: fewshot
    backbones: tiny-clip
    datasets: {TARGET}
    sources: {{datasets: [{", ".join(SOURCES)}]}}
    shots: 1
    seeds: 1
    methods: bolt_pooled
"""

Towers = dict[str, Tensor]
"""The tensors of a tower by name."""


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "adoption.yaml"
    path.write_text(GRID)
    return path


@pytest.fixture(scope="module")
def tuned(artifacts: BuiltArtifacts, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Return the grid with sources that this project fine-tuned."""
    return build_world(tmp_path_factory.mktemp("tuned"), GRID, artifacts)


@pytest.fixture(scope="module")
def towers(tuned: World) -> dict[str, Towers]:
    """Every fine-tuned source's tensors, by dataset."""
    store = Store(tuned.settings.store_url)
    plan = make_plan(tuned.grid, tuned.catalog, store)
    models = [spec for spec in plan.artifacts if isinstance(spec, SourceModel)]
    return {
        model.dataset.name: load_file(found.path("tower.safetensors"))
        for model in models
        if (found := store.artifact(model.address)) is not None
    }


def as_tower(tower: Towers, path: Path) -> Path:
    save_file(tower, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def as_clip(tower: Towers, path: Path) -> Path:
    whole = load_file(grids_folder() / "backbones/tiny-clip.safetensors")
    whole |= {f"visual.{name}": tensor for name, tensor in tower.items()}
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in whole.items()}}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def as_task_vector_repository(tower: Towers, path: Path) -> Path:
    state = {f"model.visual.{name}": tensor for name, tensor in tower.items()}
    torch.save(state | {"model.logit_scale": torch.tensor(4.6)}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def as_huggingface(tower: Towers, path: Path) -> Path:
    path.mkdir()
    save_file(to_huggingface(tower), path / "model.safetensors")
    shape = load_backbone(load_catalog().backbone("tiny-clip"), "cpu").tower.shape
    (path / "config.json").write_text(json.dumps(config_from_shape(shape)))
    return path


def write_catalog(path: Path, files: dict[str, Path]) -> Path:
    """Return a catalog file that adopts one checkpoint per dataset."""
    entries = {
        name: {"file": str(file.relative_to(path.parent)), "sha256": checkpoint_digest(file)}
        for name, file in files.items()
    }
    path.write_text(yaml.safe_dump({"checkpoints": {"tiny-clip": entries}}))
    return path


@pytest.fixture(scope="module")
def adopted_files(towers: dict[str, Towers], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalog in which each source has another layout."""
    folder = tmp_path_factory.mktemp("adopted")
    layouts = (as_tower, as_clip, as_task_vector_repository, as_huggingface)
    files = {name: write(towers[name], folder / name) for name, write in zip(SOURCES, layouts, strict=True)}
    return write_catalog(folder / "mine.yaml", files)


def test_adopted_sources_give_the_cell_of_fine_tuned_ones(
    artifacts: BuiltArtifacts, tuned: World, adopted_files: Path, tmp_path: Path
) -> None:
    """Four layouts give bit-identical results, and no image of the sources' datasets is read."""
    adopted = build_world(tmp_path, GRID, artifacts, adopted_files)
    plan = make_plan(adopted.grid, adopted.catalog, Store(adopted.settings.store_url))
    assert not plan.missing
    kinds = Counter(type(spec) for spec in plan.artifacts)
    assert (kinds[AdoptedSource], kinds[SourceModel]) == (len(SOURCES), 0)
    assert {spec.dataset.name for spec in plan.artifacts if isinstance(spec, Images)} == {TARGET}
    (theirs,), (ours,) = tuned.grid.cells, adopted.grid.cells
    assert theirs.id != ours.id
    assert measure(theirs, tuned.loaded).result.evaluations == measure(ours, adopted.loaded).result.evaluations
    for source in ours.sources:
        twin = next(ref for ref in theirs.sources if ref.dataset == source.dataset)
        mine, other = CellInputs(ours, adopted.loaded).sources, CellInputs(theirs, tuned.loaded).sources
        pair = mine.task_vector(source.dataset), other.task_vector(twin.dataset)
        assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[1])


def test_a_grid_can_ignore_adopted_sources(grid_file: Path, tuned: World, adopted_files: Path) -> None:
    ignored = f"sources={{datasets: [{', '.join(SOURCES)}], adopted: false}}"
    assert load_grid(grid_file, load_catalog([adopted_files]), set_=(ignored,)).cells == tuned.grid.cells


def test_a_missing_checkpoint_is_named_before_anything_runs(grid_file: Path, tmp_path: Path) -> None:
    entry = {"file": "gone.safetensors", "sha256": "0" * 64}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"checkpoints": {"tiny-clip": {SOURCES[0]: entry}}}))
    catalog = load_catalog([tmp_path / "mine.yaml"])
    plan = make_plan(load_grid(grid_file, catalog), catalog, Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"(?s)gone\.safetensors does not exist.*sources adopt PATH"):
        check_inputs(plan)


def test_a_changed_checkpoint_is_refused(grid_file: Path, towers: dict[str, Towers], tmp_path: Path) -> None:
    file = as_tower(towers[SOURCES[0]], tmp_path / "first")
    mine = write_catalog(tmp_path / "mine.yaml", {SOURCES[0]: file})
    save_file(towers[SOURCES[1]], file)
    settings = RunSettings(str(tmp_path / "store"), device="cpu", catalog_files=(str(mine),))
    catalog = load_catalog([mine])
    plan = make_plan(load_grid(grid_file, catalog), catalog, Store(settings.store_url))
    spec = next(spec for spec in plan.missing if isinstance(spec, AdoptedSource))
    with pytest.raises(UserError, match="is not the file that was adopted: its sha256 is"):
        build(spec, settings)
    assert not verify_checkpoints(settings, None, say=(lines := list[str]()).append)
    assert "WRONG" in lines[0]


WRONG_ENTRIES = {
    "unknown backbone 'tiny-clop'": {"tiny-clop": {SOURCES[0]: {"file": "x.pt", "sha256": "0" * 64}}},
    "unknown dataset 'glyph-ink'": {"tiny-clip": {"glyph-ink": {"file": "x.pt", "sha256": "0" * 64}}},
    "this field is needed": {"tiny-clip": {SOURCES[0]: {"file": "x.pt"}}},
    "string should match pattern": {"tiny-clip": {SOURCES[0]: {"file": "x.pt", "sha256": "abc"}}},
    "which repeats the entry.s key": {"tiny-clip": {SOURCES[0]: {"file": "x.pt", "sha256": "0" * 64, "dataset": "x"}}},
    "needs fields": {"tiny-clip": {SOURCES[0]: "x.pt"}},
}


@pytest.mark.parametrize("complaint", WRONG_ENTRIES)
def test_the_error_of_a_wrong_entry_names_its_place(complaint: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"checkpoints": WRONG_ENTRIES[complaint]}))
    with pytest.raises(UserError, match=rf"mine\.yaml: checkpoints.*{complaint}"):
        load_catalog([tmp_path / "mine.yaml"])


NAMES = ("mnist", "emnist-mnist", "cifar10", "cifar100", "stanford_cars", "eurosat")


@pytest.mark.parametrize(
    ("path", "guessed"),
    [
        ("clip-vit-base-patch32_eurosat", ["eurosat"]),
        ("clip-vit-base-patch32_cifar100.safetensors", ["cifar100"]),
        ("runs/emnist_mnist/model.safetensors", ["emnist-mnist"]),
        ("EuroSAT/finetuned.pt", ["eurosat"]),
        ("stanford-cars.pt", ["stanford_cars"]),
        ("mnist-or-eurosat.pt", ["eurosat", "mnist"]),
        ("something.pt", []),
        ("tiny_imagenet_eurosat.pt", ["eurosat"]),
        ("emnist_letters.pt", []),
    ],
)
def test_a_dataset_is_guessed_from_whole_words(path: str, guessed: list[str]) -> None:
    assert guess_dataset(Path(path), dict.fromkeys(NAMES, ())) == guessed


FAMILY = {
    "sun397": "eleven_sun397", "stanford-cars": "eleven_stanford_cars", "resisc45": "resisc45", "eurosat": "eurosat",
    "svhn": "svhn", "gtsrb": "gtsrb", "mnist": "mnist", "dtd": "dtd", "oxford_flowers102": "flowers102", "pcam": "pcam",
    "fer2013": "fer2013",
    "oxford-iiit-pet": "oxford_pets", "stl10": "stl10", "cifar100": "cifar100", "cifar10": "cifar10",
    "food101": "food101", "fashion_mnist": "fashionmnist", "emnist_letters": None, "kmnist": "kmnist",
    "rendered-sst2": "rendered_sst2",
}  # fmt: skip
"""The twenty names of a public family of fine-tuned towers -> the catalog's dataset, or none."""


def test_the_names_of_a_public_family_are_right_or_refused() -> None:
    names = {key: entry.also_called for key, entry in load_catalog().datasets.items()}
    guessed = {name: guess_dataset(Path(f"clip-vit-base-patch32_{name}"), names) for name in FAMILY}
    assert guessed == {name: [dataset] * (dataset is not None) for name, dataset in FAMILY.items()}


def test_adopted_files_are_added_and_verified(towers: dict[str, Towers], tmp_path: Path) -> None:
    """Adopts several files with ``--copy``, and guesses the datasets. The catalog file keeps its comments."""
    mine = tmp_path / "home" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("# my own\nprompts:\n  short: ['a {}']  # one will do\n")
    (tmp_path / "given").mkdir()
    paths = [
        as_tower(towers[SOURCES[0]], tmp_path / "given" / f"vit_{SOURCES[0]}"),
        as_huggingface(towers[SOURCES[1]], tmp_path / "given" / SOURCES[1].replace("-", "_")),
    ]
    lines: list[str] = []
    adopt_checkpoints([str(path) for path in paths], "tiny-clip", None, [mine], copy=True, say=lines.append)
    third = as_task_vector_repository(towers[SOURCES[2]], tmp_path / "given" / "third")
    adopt_checkpoints([str(third)], "tiny-clip", SOURCES[2], [mine], note="by hand", say=lines.append)
    assert mine.read_text().startswith("# my own\nprompts:\n  short: ['a {}']  # one will do\n")
    entries = load_catalog([mine]).checkpoints
    assert set(entries) == {("tiny-clip", name) for name in SOURCES[:3]}
    assert entries["tiny-clip", SOURCES[2]].note == "by hand"
    assert not [line for line in lines if "the same checkpoint" in line]
    homes = [entries["tiny-clip", name].file.is_relative_to(mine.parent) for name in SOURCES[:3]]
    assert homes == [True, True, False]
    assert (entries["tiny-clip", SOURCES[1]].file.parent / "config.json").is_file()
    settings = RunSettings(str(tmp_path / "store"), device="cpu", catalog_files=(str(mine),))
    found: list[str] = []
    assert verify_checkpoints(settings, "tiny-clip", say=found.append)
    assert len(found) == 3
    assert all("test images right" in line for line in found)
    assert shown(load_catalog([mine]), Store(settings.store_url)).count(" adopted ") == 3


def shown(catalog: Catalog, store: Store) -> str:
    listed = Console(width=200, record=True, file=io.StringIO())
    listed.print(source_table(catalog, store, "tiny-clip"))
    return listed.export_text()


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "where it is"])
def test_a_checkpoint_in_parts_is_adopted(copy: bool, towers: dict[str, Towers], tmp_path: Path) -> None:
    """The checksum covers every part, so a changed second part changes the identity."""
    folder, tower = tmp_path / "glyph-inks", towers["glyph-inks"]
    folder.mkdir()
    names = list(tower)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, held in parts.items():
        save_file({name: tower[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    mine = tmp_path / "home" / "mine.yaml"
    mine.parent.mkdir()
    (tmp_path / "old").mkdir()
    old = as_tower({name: tower[name] * 1.01 for name in names}, tmp_path / "old" / "model")
    for given in (old, folder):  # the copy of the first lay where that of the second was put, and hid it
        adopt_checkpoints([str(given)], "tiny-clip", "glyph-inks", [mine], copy=copy, say=lambda line: None)
    entry = load_catalog([mine]).checkpoints["tiny-clip", "glyph-inks"]
    assert entry.file.is_relative_to(mine.parent) == copy
    assert checkpoint_digest(entry.file) == entry.sha256
    assert set(read_checkpoint(entry.file).tensors) == set(tower)
    second = entry.file / "model-00002-of-00002.safetensors"
    save_file({name: tower[name] + 1 for name in names[9:]}, second)
    assert checkpoint_digest(entry.file) != entry.sha256


def test_fine_tuned_sources_are_listed_with_their_accuracy(tuned: World) -> None:
    text = shown(tuned.catalog, Store(tuned.settings.store_url))
    assert text.count("fine-tuned  ") == len(SOURCES)
    assert "epochs 1, batch 32" in text


REFUSED: dict[str, tuple[Callable[[Towers, Towers, Path], Path], str]] = {
    "unchanged": (lambda tower, frozen, path: as_tower(frozen, path), "the pre-trained tower itself"),
    "without names": (
        lambda tower, frozen, path: as_tower(tower, path.with_name("mine")), "names no dataset of the catalog"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsuitable_checkpoint_is_not_added(case: str, towers: dict[str, Towers], tmp_path: Path) -> None:
    make, says = REFUSED[case]
    whole = load_file(grids_folder() / "backbones/tiny-clip.safetensors")
    frozen = {n.removeprefix("visual."): t.float() for n, t in whole.items() if n.startswith("visual.")}
    good = as_tower(towers[SOURCES[1]], tmp_path / SOURCES[1])
    bad = make(towers[SOURCES[0]], frozen, tmp_path / SOURCES[0])
    with pytest.raises(UserError, match=says):
        adopt_checkpoints([str(good), str(bad)], "tiny-clip", None, [tmp_path / "mine.yaml"], say=lambda line: None)
    assert not (tmp_path / "mine.yaml").exists()


def test_a_source_is_adopted_once(adopted_files: Path, towers: dict[str, Towers], tmp_path: Path) -> None:
    file, mine = as_tower(towers[SOURCES[0]], tmp_path / SOURCES[0]), tmp_path / "mine.yaml"
    with pytest.raises(UserError, match="has a checkpoint of"):
        adopt_checkpoints([str(file)], "tiny-clip", None, [adopted_files, mine], say=lambda line: None)
    lines, twin = list[str](), as_tower(towers[SOURCES[0]], tmp_path / SOURCES[1])
    adopt_checkpoints([str(file), str(twin)], "tiny-clip", None, [mine], say=lines.append)
    assert [line for line in lines if f"{SOURCES[0]} and {SOURCES[1]} have the same checkpoint" in line]


COMMIT = "1234567890abcdef1234567890abcdef12345678"

ADOPTING = """
import contextlib, io, json, sys
from orchestrator.__main__ import main
addresses, options, ends = json.loads(sys.argv[1]), sys.argv[2:], {}
for address in addresses:
    said = io.StringIO()
    sys.argv = ["orchestrator", "sources", "adopt", f"hf:{address}", *options]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            ends[address] = end.code or 0, said.getvalue()
        else:
            ends[address] = 0, said.getvalue()
print(json.dumps(ends))
"""


@pytest.mark.e2e
def test_a_repository_is_adopted_at_one_commit(towers: dict[str, Towers], tmp_path: Path) -> None:
    """Only the weights and the configuration are fetched. The catalog file records the commit.

    All in one process, and not this one: huggingface_hub reads its settings when it is imported.
    """
    folder = as_huggingface(towers["glyph-inks"], tmp_path / "repository")
    more = {"training.log": b"long", "adapter_config.json": b"{}"}  # without the second, the scale of a LoRA is unknown
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | more
    options = ["--backbone", "tiny-clip", "--catalog", str(tmp_path / "mine.yaml"), "--dataset", "glyph-inks"]
    command = [sys.executable, "-c", ADOPTING, json.dumps([MISSING, NO_NAME, ADOPTED]), *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with serve(error_code="RepoNotFound", **hub_answers("models", ADOPTED, COMMIT, files)) as server:
        where = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(command, env=kept | where, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    ends: dict[str, tuple[int, str]] = json.loads(done.stdout)
    for address in (MISSING, NO_NAME):
        code, said = ends[address]
        assert (code, "Traceback" in said) == (2, False)
        assert f"hf:{address}: there is no such repository" in said
    code, said = ends[ADOPTED]
    assert code == 0, said
    entry = load_catalog([tmp_path / "mine.yaml"]).checkpoints["tiny-clip", "glyph-inks"]
    assert entry.note == f"hf:{ADOPTED}@{COMMIT}"
    fetched = sorted(file.name for file in entry.file.parent.iterdir() if file.is_file())
    assert fetched == ["adapter_config.json", "config.json", "model.safetensors"]
