"""A method learns neither test labels nor the target's own model, and at test time no label at all."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from bolt.methods import METHODS
from bolt.task.task import Adapted, Task
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.source_model import SourceModel
from orchestrator.artifacts.spec import ArtifactCache, with_inputs
from orchestrator.cells.evaluation import add_classes, evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import measure
from orchestrator.cells.task import make_task
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from orchestrator.tracks import TRACKS
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import DATASETS, FINE_TUNING, World, build_world, grid_text, tiny

OF_METHODS = ("fewshot", "tta", "tta_stream", "tta_image", "meta")
"""The tracks of the small world."""
EVERY = sorted((name, track) for name, method in METHODS.items() for track in OF_METHODS if track in method.tracks)


Adapt = Callable[[Cell, ArtifactCache], tuple[Adapted, Tensor]]


@pytest.fixture(scope="module")
def adapt() -> Adapt:
    """A function that adapts once for equal arguments."""
    return cache(_adapt)


def _adapt(cell: Cell, loaded: ArtifactCache) -> tuple[Adapted, Tensor]:
    """Return the method's classifier, and its logits on the first images of the test split."""
    inputs = CellInputs(cell, loaded)
    adapted = inputs.method.run(make_task(inputs), inputs.settings)
    adapted = add_classes(inputs, adapted, inputs.artifacts.head, inputs.adapted_classes)
    images = loaded.get(inputs.artifacts.head.images)
    with torch.inference_mode():
        features = inputs.backbone.encode_images(images.batch(0, 100), adapted.tower)
        return adapted, adapted.classify(features) if adapted.fixed_NC is None else adapted.fixed_NC


CHOOSE_ON_THE_SUPPORT = ["bolt", "gda", "linear_probe", "logistic_probe", "lp_plus_plus", "proker", "tip_adapter_f"]
NAMES = [name for name, method in METHODS.items() if TRACKS["base_to_new"].takes(method)]
EMBED_CLASSES = [name for name in NAMES if METHODS[name].trains_text(METHODS[name].configure({}))]
VARIATIONS = {
    "base_to_new": [*EMBED_CLASSES, "bolt", "clip_adapter", "lora", "two_stage", "zero_shot"],
    "cross_dataset": ["clip_adapter", "coop", "maple", "zero_shot"],
    "imbalanced": CHOOSE_ON_THE_SUPPORT,
    "ood": CHOOSE_ON_THE_SUPPORT,
}
"""Methods on the tracks that vary few-shot adaptation: all that embed new classes themselves, and a few of those whose
own part is that of the few-shot track."""

OOD_DATASET = "glyph-digits"
"""The target on the track ``ood``; the other datasets have no variant with the same classes."""


@pytest.fixture(scope="module")
def variations(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    """Return a store with these tracks and methods, each track on one dataset."""
    block = {"backbones": ["tiny-clip"], "datasets": DATASETS[:1], "shots": [2], "seeds": [1]}
    block["sources"] = {"rule": "leave_one_out", "datasets": DATASETS}
    blocks = [{**block, "track": track, "methods": [tiny(n) for n in names]} for track, names in VARIATIONS.items()]
    by_track = {block["track"]: block for block in blocks}
    by_track["cross_dataset"]["evaluate_on"] = DATASETS[1:2]
    by_track["ood"] |= {"datasets": [OOD_DATASET], "evaluate_on": ["glyph-tilted-digits"]}
    grid = {"title": "Variations of few-shot", "fine_tuning": FINE_TUNING, "blocks": blocks}
    return build_world(tmp_path_factory.mktemp("variations"), yaml.safe_dump(grid), artifacts)


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[World], ArtifactCache]:
    """Return a function that copies a world's store and replaces the labels of every test split."""

    @cache
    def with_wrong_test_labels(store: str) -> ArtifactCache:
        folder = tmp_path_factory.mktemp("poisoned") / "store"
        shutil.copytree(store, folder)
        for labels in folder.glob("images/*.test.*/**/labels.npy"):
            right = np.load(labels)
            np.save(labels, (right + 1) % (right.max() + 1))
        return ArtifactCache(RunSettings(str(folder), device="cpu"))

    return lambda world: with_wrong_test_labels(world.settings.store_url)


def test_no_track_and_no_method_is_left_out() -> None:
    assert set(TRACKS) == {*OF_METHODS, *VARIATIONS}
    assert {name for name, _ in EVERY} == set(METHODS)


@pytest.mark.parametrize(
    ("fixture", "name", "track"),
    [("world", *each) for each in EVERY]
    + [("variations", name, track) for track, names in VARIATIONS.items() for name in names],
)
def test_poisoned_test_labels_change_neither_logits_nor_details(
    request: pytest.FixtureRequest,
    adapt: Adapt,
    poisoned: Callable[[World], ArtifactCache],
    fixture: str,
    name: str,
    track: str,
) -> None:
    world: World = request.getfixturevalue(fixture)
    cell = world.pick(name, track, OOD_DATASET if track == "ood" else DATASETS[0])
    right, wrong = world.loaded, poisoned(world)
    clean, logits = adapt(cell, right)
    adapted, again = adapt(cell, wrong)
    assert torch.equal(logits, again)
    assert clean.details == adapted.details


METHOD_OF = {"cross_dataset": "zero_shot", "tta_image": "zero", "tta_stream": "tda"}
"""Track -> a method on it, where that is not BOLT."""


@pytest.mark.parametrize("track", [*OF_METHODS, *VARIATIONS])
def test_poisoned_test_labels_change_the_accuracy(
    request: pytest.FixtureRequest, adapt: Adapt, poisoned: Callable[[World], ArtifactCache], track: str
) -> None:
    world: World = request.getfixturevalue("variations" if track in VARIATIONS else "world")
    cell = world.pick(METHOD_OF.get(track, "bolt"), track, OOD_DATASET if track == "ood" else DATASETS[0])
    adapted, _ = adapt(cell, world.loaded)
    both = [evaluate_cell(CellInputs(cell, loaded), adapted)[0] for loaded in (world.loaded, poisoned(world))]
    right, wrong = (scored.evaluation.accuracy for scored in both)
    assert right > wrong


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if method.uses_sources))
def test_the_targets_own_model_is_no_source_and_poisoning_it_changes_nothing(
    world: World, adapt: Adapt, with_own_model: ArtifactCache, name: str
) -> None:
    cell = world.pick(name, "fewshot" if "fewshot" in METHODS[name].tracks else min(METHODS[name].tracks))
    assert cell.dataset.name not in {source.dataset for source in cell.sources}
    assert torch.equal(adapt(cell, world.loaded)[1], adapt(cell, with_own_model)[1])


@pytest.fixture(scope="module")
def with_own_model(world: World, tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> ArtifactCache:
    """Return the world's store with noise in place of the target's own model, which the world lacks."""
    folder = tmp_path_factory.mktemp("own-model")
    (folder / "wide.yaml").write_text(grid_text(datasets=DATASETS[:2]))
    wide = load_grid(folder / "wide.yaml", world.catalog)
    noisy = RunSettings(str(folder / "store"), device="cpu")
    shutil.copytree(world.settings.store_url, noisy.store_url)
    store = Store(noisy.store_url)
    target, planned = world.pick("bolt").dataset, make_plan(wide, world.catalog, store).artifacts
    (model,) = (spec for spec in planned if isinstance(spec, SourceModel) and spec.dataset == target)
    assert store.artifact(model.address) is None
    artifacts.build(with_inputs([model]), noisy)
    path = store.artifact(model.address).path("tower.safetensors")
    noise = torch.Generator().manual_seed(1)
    save_file({n: t + torch.randn(t.shape, generator=noise) for n, t in load_file(path).items()}, path)
    return ArtifactCache(noisy)


@pytest.mark.parametrize("track", ["fewshot", "tta", "meta"])
def test_every_method_of_a_track_is_given_the_same_images(world: World, track: str) -> None:
    seen = []
    for name, method in METHODS.items():
        if track not in method.tracks or not method.uses_support:
            continue
        if track == "tta" and not method.changes_tower:
            continue  # this method gets no crops
        cell = world.pick(name, track)
        task = make_task(CellInputs(cell, world.loaded))
        images = task.unlabelled if track.startswith("tta") else task.support
        seen.append((name, [images.pixels(view, torch.arange(4)) for view in (0, 1, 2)]))
    first, pixels = seen[0]
    for other, same in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(pixels, same, strict=True)), (first, other)


@pytest.mark.parametrize("track", OF_METHODS)
def test_the_only_labels_of_a_task_are_the_supports_and_nothing_tells_an_accuracy(world: World, track: str) -> None:
    cell = world.pick(METHOD_OF.get(track, "bolt"), track)
    task = make_task(CellInputs(cell, world.loaded))
    assert len(task.support) == (0 if track.startswith("tta") else cell.shots * len(task.head_CD))
    assert task.oracle is None
    assert (task.unlabelled is not None) == (track.startswith("tta"))


def test_the_test_split_is_found_by_the_poisoning(world: World, poisoned: Callable[[World], ArtifactCache]) -> None:
    """Without this test, the test above could pass because no file was poisoned."""
    cell = world.pick("zero_shot")
    spec = Images(cell.dataset, "test", world.loaded.image_size(cell.backbone))
    right, wrong = world.loaded.get(spec).labels, poisoned(world).get(spec).labels
    assert (right != wrong).all()


def test_a_method_that_changes_views_in_place_fails_instead_of_changing_those_of_other_cells(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = METHODS["zero"]

    def normalizing(task: Task, settings: Any) -> Any:
        views_NVD = task.test_images.view_features(settings.views)
        views_NVD /= views_NVD.norm(dim=-1, keepdim=True)
        return zero.adapt(task, settings)

    monkeypatch.setitem(METHODS, "zero", replace(zero, adapt=normalizing))
    with pytest.raises(ValueError, match="features of views"):
        measure(world.pick("zero", "tta_image"), ArtifactCache(world.settings))


def test_a_changed_text_tower_fails_a_cell_and_a_methods_own_error_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changes_text(task: Task, settings: Any) -> Any:
        next(task.backbone.text_tower.parameters()).zero_()

    def changes_and_fails(task: Task, settings: Any) -> Any:
        next(task.backbone.tower.parameters()).zero_()
        raise KeyError("its own")

    for adapt, name, error in ((changes_text, "coop", "a frozen tower"), (changes_and_fails, "zero_shot", "its own")):
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], adapt=adapt))
        with pytest.raises((ValueError, KeyError), match=error):
            measure(world.pick(name), ArtifactCache(world.settings))
