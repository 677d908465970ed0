"""A killed training continues from its last snapshot and ends with the same bits."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bolt.clip.tower import tower_digest
from bolt.training.meta import REPORT_INTERVAL, MetaRecipe
from orchestrator.artifacts.source_model import MetaStart, SourceModel
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec, artifact_cache, build, with_inputs
from orchestrator.catalog import load_catalog
from orchestrator.core.events import TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.progress.counter import ProgressCounter
from orchestrator.store import Builder, Store
from orchestrator.store.files import Files
from orchestrator.store.snapshots import SNAPSHOT_FILE, Snapshots
from orchestrator.util.identity import canonical_json
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.helpers.image_folders import write_image_folders
from tests.helpers.warm_process import kill_forked_when, run_forked

EPOCHS = 12
GRID = f"""
title: Two sources
fine_tuning: {{epochs: {EPOCHS}, batch_size: 8, learning_rate: 5.0e-4, warmup_steps: 5}}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [amounts]
    sources: {{rule: leave_one_out, datasets: [amounts, shades]}}
    shots: [1]
    seeds: [1]
    methods: [bolt_pooled]
"""
TRAINING = """
import sys
from orchestrator.core.settings import RunSettings
from tests.orchestrator.artifacts.test_finetuning import train_here
train_here(sys.argv[1], sys.argv[2])
"""


def source_model(folder: Path, store: Store) -> tuple[SourceModel, list[ArtifactSpec]]:
    path = folder / "two.yaml"
    path.write_text(GRID)
    write_image_folders(folder)
    catalog = load_catalog([folder / "own.yaml"])
    specs = make_plan(load_grid(path, catalog), catalog, store, folder / "images").artifacts
    model = next(spec for spec in specs if isinstance(spec, SourceModel))
    return model, with_inputs(model.inputs)


def settings_of(store: Path | str, folder: Path) -> RunSettings:
    own = {"data_root": str(folder / "images"), "catalog_files": (str(folder / "own.yaml"),)}
    return RunSettings(str(store), device="cpu", snapshot_seconds=0.0, **own)  # type: ignore[arg-type]


def train_here(folder: str, store: str) -> None:
    """Train the source model in this process, as the child processes of these tests do."""
    model, _ = source_model(Path(folder), Store(store))
    build(model, settings_of(store, Path(folder)))


@pytest.fixture(scope="module")
def inputs(artifacts: BuiltArtifacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with all inputs of a source model."""
    folder = tmp_path_factory.mktemp("inputs")
    store = Store(folder / "store")
    artifacts.build(source_model(folder, store)[1], settings_of(store.url, folder))
    return folder / "store"


@pytest.fixture(scope="module")
def uninterrupted(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, object]]:
    """Return the tower and the recorded facts of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    store = copied(inputs, folder / "store")
    build(source_model(folder, Store(store))[0], settings_of(store, folder))
    return result(folder, store)


def copied(inputs: Path, store: Path) -> Path:
    return Path(shutil.copytree(inputs, store))


def result(folder: Path, store: Path) -> tuple[bytes, dict[str, object]]:
    model, _ = source_model(folder, Store(store))
    found = Store(store).artifact(model.address, model.identity)
    found.verify()
    assert not list((store / model.address).glob(f"*{SNAPSHOT_FILE}*"))
    return found.path("tower.safetensors").read_bytes(), found.meta


def test_after_fine_tuning_the_pretrained_backbone_is_loaded_again(inputs: Path, tmp_path: Path) -> None:
    """The training changes the tower of the backbone that the process had loaded, in place."""
    settings = settings_of(copied(inputs, tmp_path / "store"), tmp_path)
    model, _ = source_model(tmp_path, Store(settings.store_url))
    loaded = artifact_cache(settings)
    trained = loaded.backbone(model.backbone)
    pretrained = tower_digest(trained.tower)
    build(model, settings)
    assert tower_digest(trained.tower) != pretrained
    again = loaded.backbone(model.backbone).tower
    assert tower_digest(again) == pretrained
    assert not any(tensor.requires_grad for tensor in again.parameters())


@pytest.fixture
def killed(inputs: Path, tmp_path: Path) -> Path:
    """Return a store in which the training of a source model was killed after its first epoch."""
    store = copied(inputs, tmp_path / "store")
    model, _ = source_model(tmp_path, Store(store))
    begun = (store / model.address / SNAPSHOT_FILE).exists
    assert kill_forked_when([str(tmp_path), str(store)], begun, script=TRAINING), "it ended before its first snapshot"
    assert Store(store).artifact(model.address) is None
    return store


def snapshots_of(model: ArtifactSpec, store: Path) -> Snapshots:
    return Snapshots(Files(store), model.address, canonical_json(model.identity))


def test_a_killed_training_goes_on_and_ends_with_the_same_bits(
    killed: Path, tmp_path: Path, uninterrupted: tuple[bytes, dict[str, object]]
) -> None:
    model, _ = source_model(tmp_path, Store(killed))
    state = snapshots_of(model, killed).load()
    assert state is not None
    assert 0 <= state["epoch"] < EPOCHS
    state["curve"][0]["train_loss"] = 123.0  # only a training that continues from this snapshot keeps this value
    snapshots_of(model, killed).save_if_due(lambda: state, 0.0)
    build(model, settings_of(killed, tmp_path))
    tower, meta = result(tmp_path, killed)
    assert tower == uninterrupted[0]
    assert meta["accuracy_fine_tuned"] == uninterrupted[1]["accuracy_fine_tuned"]
    curve, whole = meta["train_loss"], uninterrupted[1]["train_loss"]
    assert isinstance(curve, list)
    assert isinstance(whole, list)
    assert curve == [123.0, *whole[1:]]


Whole = tuple[bytes, dict[str, object]]


def test_two_trainings_leave_one_artifact(inputs: Path, tmp_path: Path, uninterrupted: Whole) -> None:
    store = copied(inputs, tmp_path / "store")
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        ended = pool.map(lambda folder: run_forked([str(folder), str(store)], TRAINING), folders)
    assert [done.stderr for done in ended if done.returncode] == []
    assert result(tmp_path, store)[0] == uninterrupted[0]


STATE = {
    "epoch": 3,
    "parameters": [torch.arange(6.0).reshape(2, 3).T, torch.tensor(-0.0)],
    "optimiser": {"state": {0: {"step": torch.tensor(7.0), "half": torch.ones(2, dtype=torch.bfloat16)}},
                  "param_groups": [{"betas": (0.9, 0.999), "fused": True, "foreach": None, "params": [0, 1]}]},
    "curve": [{"train_loss": 0.1}],
    "best": [],
}  # fmt: skip


@pytest.mark.parametrize("remote", [False, True])
def test_a_state_comes_back_as_it_was_from_any_store(remote: bool, tmp_path: Path) -> None:
    files = Files(f"memory://{tmp_path.name}" if remote else tmp_path)
    address = "sources/x--00000000"
    if not remote:
        (tmp_path / address).mkdir(parents=True)
    kept = Snapshots(files, address, '{"recipe":1}')
    assert kept.load() is None
    kept.save_if_due(lambda: STATE, 0.0)
    found = Snapshots(files, address, '{"recipe":1}').load()
    assert found is not None
    for mine, theirs in zip(STATE["parameters"], found["parameters"], strict=True):  # type: ignore[call-overload]
        assert torch.equal(mine, theirs)
        assert torch.equal(mine.signbit(), theirs.signbit())
    assert found["optimiser"]["state"][0]["half"].dtype == torch.bfloat16
    assert found["optimiser"]["param_groups"] == STATE["optimiser"]["param_groups"]  # type: ignore[index]
    assert {key: found[key] for key in ("epoch", "curve", "best")} == {"epoch": 3, "curve": STATE["curve"], "best": []}
    assert Snapshots(files, address, '{"recipe":2}').load() is None
    kept.remove()
    assert kept.load() is None
    assert files.names(address) == []


def test_a_snapshot_that_cannot_be_kept_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Snapshots(Files(tmp_path / "nowhere"), "sources/x--00000000", "{}")
    kept.save_if_due(lambda: STATE, 0.0)
    assert "snapshot could not be written" in caplog.text
    assert kept.load() is None
    asked: list[int] = []
    kept.save_if_due(lambda: asked.append(1), RunSettings("").snapshot_seconds)
    assert not asked, "a short training keeps none"
    with pytest.raises(TypeError, match="Path"):  # what is not plain data is refused
        kept.save_if_due(lambda: {"where": tmp_path}, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_meta_learned_start_goes_on_and_ends_with_the_same_bits(inputs: Path, tmp_path: Path) -> None:
    model, _ = source_model(tmp_path, Store(inputs))
    recipe = MetaRecipe("reptile", steps=2 * REPORT_INTERVAL, support=4, query=4, outer_rate=0.5, inner_rate=1e-3)
    spec = MetaStart(model.backbone, (model.dataset,), model.image_size, recipe)

    def stop(done: int, of: int) -> None:
        if done == of:
            raise KeyboardInterrupt

    def meta_learn(loaded: ArtifactCache, interrupted: bool = False) -> None:
        with loaded.store.building(spec.address, spec.identity) as builder:
            spec.build(loaded, replace(builder, progress=stop) if interrupted else builder)

    ends = []
    for name in ("whole", "interrupted"):
        loaded = ArtifactCache(settings_of(copied(inputs, tmp_path / name), tmp_path))
        if name == "interrupted":
            with pytest.raises(KeyboardInterrupt):
                meta_learn(loaded, interrupted=True)
            assert snapshots_of(spec, tmp_path / name).load() is not None
        meta_learn(loaded)
        found = loaded.store.artifact(spec.address, spec.identity)
        ends.append((found.path("tower.safetensors").read_bytes(), json.dumps(found.meta["meta_loss"])))
    assert ends[0] == ends[1]


def test_the_builder_is_told_how_far_and_the_store_can_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.building.WRITE_SECONDS", 0.0)
    store, address = Store(tmp_path), "sources/x--00000000"

    def half_way(builder: Builder) -> None:
        builder.progress(1500, 3000)
        assert Store(tmp_path).build_progress(address) == "1,500 of 3,000"
        shown = ProgressCounter([], {address: 1.0}, build_progress=Store(tmp_path).build_progress)
        shown.on_event(TaskEvent(address, "started"))
        shown.read_build_progress()
        assert shown.snapshot().line.startswith(f"artifacts 0/1, {address}: 1,500 of 3,000, ")

    with store.building(address, {}) as builder:
        assert store.build_progress(address) == ""
        half_way(builder)
        with Store(tmp_path).building(address, {}):  # the progress of a killed builder is not shown
            assert store.build_progress(address) == ""
        half_way(builder)
    assert store.build_progress(address) == ""
