"""A cell's number format, through the real engine: training, features, the choice of alpha, scoring, the record."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from orchestrator.artifacts.required import cell_artifacts
from orchestrator.artifacts.spec import build, with_inputs
from orchestrator.cells.measure import measure
from orchestrator.core.cell import Cell
from orchestrator.planning.checks import check_precisions
from orchestrator.planning.plan import make_plan
from orchestrator.util.errors import UserError
from tests.orchestrator.conftest import World


def in_bfloat16(cell: Cell) -> Cell:
    return replace(cell, backbone=replace(cell.backbone, precision="bfloat16"))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pass through the image tower ran in bfloat16. They compute in float32, which is faster here."""
    found: list[bool] = []
    encode = ImageTower._encode

    def watched(self: ImageTower, images_B3SS: Tensor) -> Tensor:
        found.append(torch.is_autocast_enabled("cpu"))
        with torch.autocast("cpu", enabled=False):
            return encode(self, images_B3SS)

    monkeypatch.setattr(ImageTower, "_encode", watched)
    return found


@pytest.mark.parametrize("method", ["bolt", "lora", "atlas", "linear_probe"])
def test_everything_in_a_cell_runs_the_tower_in_its_format(method: str, world: World, passes: list[bool]) -> None:
    cell = in_bfloat16(world.pick(method, shots=1))
    reads = cell_artifacts(cell, world.catalog)
    for spec in with_inputs(reads.specs):
        build(spec, world.settings)
    result = measure(cell, world.loaded).result
    assert passes
    assert all(passes)
    assert result.manifest.precision == "bfloat16"
    assert measure(world.pick(method, shots=1), world.loaded).result.manifest.precision == "float32"


def test_a_run_without_a_gpu_refuses_tf32_before_it_starts(world: World) -> None:
    cells = [replace(cell, backbone=replace(cell.backbone, precision="tf32")) for cell in world.grid.cells[:2]]
    plan = make_plan(replace(world.grid, cells=tuple(cells)), world.catalog, world.loaded.store)
    check_precisions(plan, replace(world.settings, device=None), gpus=1)
    with pytest.raises(UserError, match="tf32"):
        check_precisions(plan, world.settings, gpus=1)
    with pytest.raises(UserError, match="tf32"):
        check_precisions(plan, replace(world.settings, device=None), gpus=0)


def test_features_belong_to_a_format_and_heads_to_all(world: World) -> None:
    cell = world.pick("linear_probe")
    ours, other = (cell_artifacts(each, world.catalog) for each in (cell, in_bfloat16(cell)))
    assert ours.head == other.head
    assert ours.support_images == other.support_images
    assert ours.support_features.address != other.support_features.address
    assert ours.test_features[0].address != other.test_features[0].address


def test_a_format_that_the_device_does_not_have_is_refused_in_words(world: World) -> None:
    cell = world.pick("zero_shot")
    with pytest.raises(UserError, match="tf32"):
        world.loaded.backbone(replace(cell.backbone, precision="tf32"))
