"""Methods that train through both towers gain on drawn images, with the pre-trained tiny CLIP."""

from statistics import mean

import pytest
import yaml

from bolt.methods import METHODS
from orchestrator.cells.evaluation import evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.task import make_task
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import World, build_world

BOTH_TOWERS = ["clipfit", "maple", "promptsrc"]
TARGETS = ["aerial-water", "glyph-digits"]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, artifacts: BuiltArtifacts) -> World:
    """Return a store of two targets, one of aerial pictures and one of characters."""
    block = {"track": "fewshot", "backbones": ["tiny-clip"], "datasets": TARGETS, "shots": [4], "seeds": [1]}
    grid = {"title": "Both towers", "blocks": [{**block, "methods": ["zero_shot", *BOTH_TOWERS]}]}
    return build_world(tmp_path_factory.mktemp("both-towers"), yaml.safe_dump(grid), artifacts)


def accuracy(world: World, name: str, dataset: str) -> float:
    """Accuracy in per cent with four images a class, at the method's default settings."""
    inputs = CellInputs(world.pick(name, dataset=dataset, shots=4), world.loaded)
    adapted = METHODS[name].adapt(make_task(inputs), inputs.settings)
    return evaluate_cell(inputs, adapted)[0].evaluation.accuracy


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH_TOWERS)
def test_the_mean_accuracy_is_above_that_of_the_text_head(targets: World, name: str) -> None:
    gains = [accuracy(targets, name, dataset) - accuracy(targets, "zero_shot", dataset) for dataset in TARGETS]
    assert mean(gains) > 8, gains
