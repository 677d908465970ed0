"""Cells that score classes which the support does not have: base-to-new, other datasets, trained text towers."""

from pathlib import Path
from statistics import harmonic_mean

import numpy as np
import open_clip
import pytest
import torch
import yaml

from bolt.methods import METHODS
from bolt.task.classifiers import CosineClassifier
from orchestrator.artifacts import features
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.cells.evaluation import evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import measure, model_of
from orchestrator.cells.splits import class_numbers
from orchestrator.cells.task import make_task
from orchestrator.cells.trial import run_and_record
from orchestrator.core.cell import Cell
from orchestrator.models.export import restore_model
from orchestrator.models.inspection import inspect_cell
from orchestrator.tracks import TRACKS
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import World, build_world, tiny

TARGET = "glyph-digits"
"""Ten classes."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    block = {"backbones": ["tiny-clip"], "datasets": [TARGET], "shots": [2], "seeds": [1]}
    methods = {
        "base_to_new": ["zero_shot", "lora", "clip_adapter", "coop"],
        "imbalanced": ["lora"],
        "fewshot": ["lora"],
    }
    blocks = [{**block, "track": track, "methods": [tiny(name) for name in names]} for track, names in methods.items()]
    folder = tmp_path_factory.mktemp("tracks")
    return build_world(folder, yaml.safe_dump({"title": "Tracks", "blocks": blocks}), artifacts)


def pick(world: World, method: str, track: str = "base_to_new") -> Cell:
    return world.pick(method, track, TARGET)


def test_a_method_sees_images_and_embeddings_of_the_base_classes_alone(world: World) -> None:
    task = make_task(CellInputs(pick(world, "lora"), world.loaded))
    few_shot = make_task(CellInputs(pick(world, "lora", "fewshot"), world.loaded))
    assert len(task.head_CD) == 5
    assert torch.bincount(task.support.labels_N).tolist() == [2] * 5
    base_N = few_shot.support.labels_N < 5
    assert torch.equal(task.support.indices_N, few_shot.support.indices_N[base_N])
    assert torch.equal(task.head_CD, few_shot.head_CD[:5])


@pytest.mark.parametrize("method", ["zero_shot", "lora", "clip_adapter", "coop"])
def test_each_group_is_predicted_among_its_own_classes(world: World, method: str) -> None:
    cell, loaded = pick(world, method), world.loaded
    measured = measure(cell, loaded)
    everything, base, new = measured.result.evaluations
    assert (everything.dataset, everything.total) == (TARGET, base.total + new.total)
    assert [len(scored.per_class) for scored in (everything, base, new)] == [10, 5, 5]
    images = loaded.get(Images(cell.dataset, "test", loaded.image_size(cell.backbone)))
    model = model_of(measured.result, measured.adapted, loaded)
    logits_NC, labels_N = model.logits(images.batch(0, len(images))), torch.from_numpy(images.labels)
    assert logits_NC.shape[1] == 10
    for scored, start in ((base, 0), (new, 5)):
        own_N = (labels_N >= start) & (labels_N < start + 5)
        right = logits_NC[own_N, start : start + 5].argmax(dim=1) + start == labels_N[own_N]
        assert scored.correct == int(right.sum())
    expected = harmonic_mean([base.accuracy, new.accuracy])
    assert measured.result.details["harmonic_mean"] == pytest.approx(expected)
    assert (base.accuracy == base.accuracy_zero_shot) == (method == "zero_shot")


def test_new_classes_are_told_apart_by_the_adapted_tower_and_the_text_embeddings(world: World) -> None:
    cell = pick(world, "lora")
    classifier = measure(cell, world.loaded).adapted.classify
    assert torch.equal(classifier.head_CD, world.loaded.get(head_of(cell, world)))  # type: ignore[attr-defined]


def test_new_classes_of_a_trained_text_side_get_their_embeddings_from_the_method(world: World) -> None:
    cell = pick(world, "coop")
    assert make_task(CellInputs(pick(world, "lora"), world.loaded)).text is None
    task = make_task(CellInputs(cell, world.loaded))
    assert len(task.class_text.class_names) == 5
    adapted = measure(cell, world.loaded).adapted
    names = head_of(cell, world).class_text(world.loaded).class_names
    assert names[:5] == task.class_text.class_names
    assert adapted.embed_classes is not None
    torch.testing.assert_close(
        adapted.classify.head_CD,  # type: ignore[attr-defined]
        adapted.embed_classes(names),
    )


def head_of(cell: Cell, world: World) -> Head:
    return Head(cell.backbone, cell.dataset, world.loaded.image_size(cell.backbone))


def test_an_imbalanced_support_has_as_many_images_as_a_balanced_one(world: World) -> None:
    cell = pick(world, "lora", "imbalanced")
    task = make_task(CellInputs(cell, world.loaded))
    assert (len(task.support), len(task.head_CD)) == (20, 10)
    counts = torch.bincount(task.support.labels_N, minlength=10)
    assert len(set(counts.tolist())) > 1
    result = measure(cell, world.loaded).result
    assert result.details.get("classes_without_images", 0) == int((counts == 0).sum())
    assert "short_classes" not in result.details
    pixels = task.support.pixels(0, torch.arange(3))
    assert pixels.shape[0] == 3
    assert np.unique(task.support.indices_N).size == 20


OTHERS = ("glyph-inks", "aerial-water")


@pytest.fixture(scope="module")
def shifted_world(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    block = {
        "track": "cross_dataset", "backbones": ["tiny-clip"], "datasets": [TARGET], "evaluate_on": [TARGET, *OTHERS],
        "shots": [2], "seeds": [1], "methods": [tiny(name) for name in ("zero_shot", "clip_adapter", "coop", "lora")],
    }  # fmt: skip
    text = yaml.safe_dump({"title": "Transfer", "protocol": "dassl", "blocks": [block]})
    return build_world(tmp_path_factory.mktemp("transfer"), text, artifacts)


@pytest.mark.parametrize("method", ["zero_shot", "clip_adapter", "coop", "lora"])
def test_other_datasets_are_classified_among_their_own_words(shifted_world: World, method: str) -> None:
    cell, loaded = shifted_world.pick(method, "cross_dataset", TARGET), shifted_world.loaded
    found = {scored.dataset: scored for scored in measure(cell, loaded).result.evaluations}
    assert list(found) == [TARGET, *OTHERS]
    for dataset in cell.evaluate_on:
        size = loaded.image_size(cell.backbone)
        features_ND = loaded.get(features.TestFeatures(cell.backbone, dataset, size))
        head_CD = loaded.get(Head(cell.backbone, dataset, size))
        labels_N = torch.from_numpy(loaded.get(Images(dataset, "test", size)).labels)
        classify = CosineClassifier(head_CD, loaded.backbone(cell.backbone).logit_scale)
        expected = (classify(features_ND).argmax(1) == labels_N).double().mean().item() * 100
        assert found[dataset.name].accuracy_zero_shot == pytest.approx(expected, abs=1e-9)
        assert len(found[dataset.name].per_class) == len(head_CD)
        if method == "zero_shot":
            assert found[dataset.name].accuracy == pytest.approx(expected, abs=1e-9)


def test_the_page_of_a_cell_names_the_own_classes_of_other_datasets(shifted_world: World) -> None:
    cell, loaded = shifted_world.pick("clip_adapter", "cross_dataset", TARGET), shifted_world.loaded
    assert run_and_record(cell, shifted_world.settings).kind == "finished"
    result = loaded.store.read_result(cell.id)
    found = inspect_cell(result, loaded)
    for split, dataset, recorded in zip(found.splits, cell.evaluate_on, result.evaluations, strict=True):
        names = Images(dataset, "test", loaded.image_size(cell.backbone)).class_names(loaded)
        assert split.class_names == names
        assert split.confusion().diagonal().tolist() == [hits for hits, _ in recorded.per_class]
        assert 100 * (split.frozen == split.labels).mean() == pytest.approx(recorded.accuracy_zero_shot, abs=1e-9)


def test_the_model_of_a_method_that_embeds_the_own_words_is_exported(shifted_world: World) -> None:
    """Its adapter was scored with the text head's words on other datasets, and refused for other scores."""
    cell = shifted_world.pick("coop", "cross_dataset", TARGET)
    assert run_and_record(cell, shifted_world.settings).kind == "finished"
    assert shifted_world.loaded.store.adapter_folder(cell.id) is not None
    made = restore_model(shifted_world.loaded.store.read_result(cell.id), shifted_world.loaded)
    assert (made.how, made.warnings) == ("again", ())


def test_methods_that_cannot_name_new_classes_are_refused(shifted_world: World) -> None:
    assert not TRACKS["cross_dataset"].takes(METHODS["tip_adapter"])
    assert TRACKS["cross_dataset"].takes(METHODS["coop"])


@pytest.mark.slow
def test_a_method_that_trains_both_towers_is_above_the_text_head(tmp_path: Path, artifacts: BuiltArtifacts) -> None:
    """Accuracies in per cent with two images a class, at the default settings."""
    block = {"track": "fewshot", "backbones": ["tiny-clip"], "datasets": [TARGET], "shots": [2], "seeds": [1]}
    grid = {"title": "Both towers", "blocks": [{**block, "methods": ["zero_shot", "maple"]}]}
    world, accuracies = build_world(tmp_path, yaml.safe_dump(grid), artifacts), {}
    for cell in world.grid.cells:
        inputs = CellInputs(cell, world.loaded)
        adapted = METHODS[cell.method.name].adapt(make_task(inputs), inputs.settings)
        accuracies[cell.method.name] = evaluate_cell(inputs, adapted)[0].evaluation.accuracy
    assert accuracies["maple"] - accuracies["zero_shot"] > 5


def test_classes_with_equal_names_keep_their_own_numbers_on_a_variant() -> None:
    """ImageNet has two classes ``missile``. On its variants, the images of the first counted as those of the second."""
    names = open_clip.IMAGENET_CLASSNAMES
    assert names[657] == names[744] == "missile"
    assert class_numbers(names, names) == [*range(1000)]
    assert class_numbers(["dog", "fox", "cat"], ["cat", "dog"]) == [1, None, 0]
