"""Cells of the track ``cross_dataset``: other datasets are scored by their own class words."""

import pytest
import torch
import yaml

from bolt.task.task import cosine_classifier
from orchestrator.artifacts import features
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.cells.measure import measure
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import World, build_world, tiny

TARGET, OTHERS = "glyph-digits", ("glyph-inks", "aerial-water")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    block = {
        "track": "cross_dataset", "backbones": ["tiny-clip"], "datasets": [TARGET], "evaluate_on": [TARGET, *OTHERS],
        "shots": [2], "seeds": [1], "methods": [tiny(name) for name in ("zero_shot", "clip_adapter", "coop", "lora")],
    }  # fmt: skip
    text = yaml.safe_dump({"title": "Transfer", "protocol": "dassl", "blocks": [block]})
    return build_world(tmp_path_factory.mktemp("transfer"), text, artifacts)


@pytest.mark.parametrize("method", ["zero_shot", "clip_adapter", "coop", "lora"])
def test_other_datasets_are_classified_among_their_own_words(world: World, method: str) -> None:
    cell, loaded = world.pick(method, "cross_dataset", TARGET), world.loaded
    found = {scored.dataset: scored for scored in measure(cell, loaded).result.evaluations}
    assert list(found) == [TARGET, *OTHERS]
    for dataset in cell.evaluate_on:
        size = loaded.image_size(cell.backbone)
        features_ND = loaded.get(features.TestFeatures(cell.backbone, dataset, size))
        head_CD = loaded.get(Head(cell.backbone, dataset, size))
        labels_N = torch.from_numpy(loaded.get(Images(dataset, "test", size)).labels)
        classify = cosine_classifier(head_CD, loaded.backbone(cell.backbone).logit_scale)
        expected = (classify(features_ND).argmax(1) == labels_N).double().mean().item() * 100
        assert found[dataset.name].accuracy_zero_shot == pytest.approx(expected, abs=1e-9)
        assert len(found[dataset.name].per_class) == len(head_CD)
        if method == "zero_shot":
            assert found[dataset.name].accuracy == pytest.approx(expected, abs=1e-9)


def test_methods_that_cannot_name_new_classes_are_refused(world: World) -> None:
    from bolt.methods import METHODS
    from orchestrator.tracks import TRACKS

    assert not TRACKS["cross_dataset"].takes(METHODS["tip_adapter"])
    assert TRACKS["cross_dataset"].takes(METHODS["coop"])
