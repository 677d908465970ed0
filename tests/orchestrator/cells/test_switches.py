"""Switches of the protocol and formats of numbers reach the cells."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.protocol import PUBLISHED, STRICT, SWITCHES, Precision
from bolt.task.support import validation_tenth
from bolt.task.task import Task
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.required import cell_artifacts, support_images
from orchestrator.artifacts.spec import build, with_inputs
from orchestrator.catalog import backbone_ref, dataset_ref
from orchestrator.catalog.backbone_entry import swap_activation
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import measure
from orchestrator.cells.task import drifting_order, make_task
from orchestrator.core.cell import Cell
from orchestrator.execution.run import RunOptions, check_precisions, execute
from orchestrator.grid.resolve import resolve_protocol
from orchestrator.planning.plan import make_plan
from orchestrator.progress.counter import ProgressCounter
from orchestrator.store.predictions import parse_predictions
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError
from tests.orchestrator.conftest import DATASETS, World


def turned(cell: Cell, **switches: Any) -> Cell:
    return replace(cell, protocol=STRICT.with_switches(**switches))


def prepare(world: World, cell: Cell) -> None:
    """Build the artifacts that a cell reads, except its sources, which exist."""
    for spec in with_inputs(cell_artifacts(cell, world.catalog).specs):
        build(spec, world.settings)


def task_of(world: World, cell: Cell) -> Task:
    prepare(world, cell)
    return make_task(CellInputs(cell, world.loaded))


def result_of(world: World, cell: Cell) -> Result:
    prepare(world, cell)
    return measure(cell, world.loaded).result


def test_every_switch_can_be_turned_by_name_and_differs_between_the_protocols() -> None:
    same = {name for name in SWITCHES if getattr(STRICT, name) == getattr(PUBLISHED, name)}
    # These differ between the paper's domains, between the tables, the released code and the ablation, or in the field.
    of_the_field = {"validation", "support_crop", "stream"}
    assert same == {"epoch_selection", "support_pool", "baseline_crop", "task_count_basis"} | of_the_field
    for name in SWITCHES:
        other = resolve_protocol({"name": "strict", name: _other_value(name)}, location=None)  # type: ignore[arg-type]
        assert other.name.startswith(f"strict+{name}=")


def _other_value(name: str) -> Any:
    others = {
        "epoch_selection": "best_train_loss", "support_pool": "less_validation", "baseline_crop": "light",
        "task_count_basis": "padded", "validation": "drawn", "support_crop": "coop", "stream": "drifting",
    }  # fmt: skip
    return others.get(name, getattr(PUBLISHED, name))


def test_a_swapped_activation_is_another_backbone_with_the_same_sources(world: World) -> None:
    cell = world.pick("bolt")
    entry = world.catalog.backbone(cell.backbone.name)
    other = replace(turned(cell, activation="swapped"), backbone=backbone_ref(swap_activation(entry)))
    assert other.backbone != cell.backbone
    prepare(world, other)
    assert world.loaded.backbone(other.backbone).activation != world.loaded.backbone(cell.backbone).activation
    assert result_of(world, other).evaluations != result_of(world, cell).evaluations


def test_fresh_draws_are_those_of_numpys_seeded_generator(world: World) -> None:
    cell = turned(world.pick("tip_adapter"), support_draw="fresh")
    support = task_of(world, cell).support
    labels = world.loaded.get(support_images(cell, world.loaded.catalog)).labels_of_split
    np.random.seed(cell.seed)  # noqa: NPY002 - the very call of the authors' code
    expected = [np.random.choice(np.flatnonzero(labels == c), 2, replace=False) for c in range(8)]  # noqa: NPY002
    assert set(support.indices_N.tolist()) == set(np.concatenate(expected).tolist())


def test_a_pool_less_validation_holds_no_image_of_that_tenth(world: World) -> None:
    cell = replace(turned(world.pick("tip_adapter"), support_pool="less_validation"), shots=16)
    tenth = set(validation_tenth(world.catalog.dataset(cell.dataset.name).sizes.train).tolist())
    with_it = task_of(world, replace(cell, protocol=STRICT)).support.indices_N
    without = task_of(world, cell).support.indices_N
    assert tenth & set(with_it.tolist())
    assert not tenth & set(without.tolist())


def test_the_validation_tenth_is_the_one_of_the_task_vector_repositories() -> None:
    """MNIST: the first image left for training is 36,044 (facts of the published splits)."""
    held_out = validation_tenth(60_000)
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    assert (len(held_out), int(order[0])) == (5000, 36044)
    assert 36044 not in held_out


@pytest.mark.parametrize(("dataset", "mirrorable"), [("glyph-digits", False), ("aerial-roofs", True)])
def test_only_datasets_that_survive_it_are_mirrored(world: World, dataset: str, mirrorable: bool) -> None:
    entry = world.catalog.dataset(dataset)
    assert entry.mirrorable == mirrorable
    cell = replace(
        world.pick("zero_shot"), dataset=dataset_ref(entry, None), method=world.pick("bolt").method, shots=4, seed=1
    )
    strict = task_of(world, replace(cell, sources=()))
    always = task_of(world, turned(replace(cell, sources=()), flips="always"))
    rows = torch.arange(len(strict.support))
    same = torch.equal(strict.support.pixels(1, rows), always.support.pixels(1, rows))
    assert same == mirrorable


def test_crops_of_coop_keep_less_of_an_image_and_no_feature_is_shared_with_others(world: World) -> None:
    cell = world.pick("tip_adapter")
    coop = turned(cell, support_crop="coop")
    views = [cell_artifacts(one, world.catalog).views for one in (cell, coop)]
    assert [view.smallest for view in views] == [0.5, 0.08]
    features = [cell_artifacts(one, world.catalog).support_features for one in (cell, coop)]
    assert features[0] != features[1]
    rows = torch.arange(4)
    half, tiny = (task_of(world, one).support.pixels(1, rows) for one in (cell, coop))
    assert not torch.equal(half, tiny)


def test_baselines_may_see_lighter_crops_than_bolt(world: World) -> None:
    rows = torch.arange(4)
    pixels = {}
    for name in ("bolt", "linear_probe"):
        for crop in ("shared", "light"):
            support = task_of(world, turned(world.pick(name), baseline_crop=crop)).support
            pixels[name, crop] = support.pixels(1, rows)
    assert torch.equal(pixels["bolt", "shared"], pixels["linear_probe", "shared"])
    assert torch.equal(pixels["bolt", "shared"], pixels["bolt", "light"])
    assert not torch.equal(pixels["linear_probe", "shared"], pixels["linear_probe", "light"])


def test_selection_on_the_test_set_needs_a_switch_and_is_told(world: World) -> None:
    cell = turned(world.pick("linear_probe"), config_selection="best_on_test")
    strict, chosen = result_of(world, world.pick("linear_probe")), result_of(world, cell)
    assert cell.selects_on_test
    assert ["selected_learning_rate" in one.details for one in (strict, chosen)] == [False, True]
    assert chosen.evaluations[0].accuracy >= strict.evaluations[0].accuracy
    assert task_of(world, cell).oracle is not None


def test_alpha_at_test_time_needs_a_switch_to_see_labels(world: World) -> None:
    cell = world.pick("bolt_pooled", "tta")
    blind = result_of(world, cell)
    seeing = result_of(world, turned(cell, tta_alpha="test_labels"))
    assert turned(cell, tta_alpha="test_labels").selects_on_test
    assert seeing.evaluations[0].accuracy >= blind.evaluations[0].accuracy


def test_the_meta_learned_start_may_be_scored_on_a_tenth_of_the_training_split(world: World) -> None:
    sizes = world.catalog.dataset(DATASETS[0]).sizes
    for method, total in (("meta_init", sizes.train // 10), ("bolt", sizes.test)):
        (score,) = result_of(world, turned(world.pick(method, "meta"), meta_scoring="validation")).evaluations
        assert score.total == total


def test_the_meta_track_scores_after_every_epoch(world: World) -> None:
    result = result_of(world, world.pick("bolt", "meta"))
    assert len(result.curves["accuracy"]) == len(result.curves["train_loss"]) > 1
    assert result.curves["accuracy"][-1] == result.evaluations[0].accuracy


def test_published_supports_of_the_ood_track_come_from_the_test_split_and_are_not_scored(world: World) -> None:
    cell = replace(world.pick("linear_probe"), track="ood")
    (strict,) = result_of(world, cell).evaluations
    (other,) = result_of(world, turned(cell, ood_support="test")).evaluations
    # The largest support is left out, not the cell's own two a class, so that every k is scored on the same images.
    assert strict.total - other.total == 16 * 8
    without_support = replace(world.pick("zero_shot"), track="ood")  # without a support, all test images are scored
    (all_images,) = result_of(world, turned(without_support, ood_support="test")).evaluations
    assert all_images.total == strict.total


def test_the_predictions_of_a_part_of_a_split_say_which_images_were_scored(world: World) -> None:
    cell = turned(replace(world.pick("linear_probe"), track="ood"), ood_support="test")
    prepare(world, cell)
    measured = measure(cell, world.loaded)
    (split,) = parse_predictions(measured.predictions, measured.result.evaluations)
    assert split.rows is not None
    labels = world.loaded.get(Images(cell.dataset, "test", world.loaded.image_size(cell.backbone))).labels
    assert len(split.rows) == len(labels) - 16 * 8
    assert (labels[split.rows] == split.labels).all()


def test_a_cell_that_selects_on_test_reads_its_targets_features_even_if_it_is_scored_elsewhere(world: World) -> None:
    cell = world.pick("bolt")
    other = dataset_ref(world.catalog.dataset(DATASETS[1]), None)
    elsewhere = replace(cell, evaluate_on=(other,))
    selecting = turned(elsewhere, config_selection=PUBLISHED.config_selection)
    read = [each.dataset for each in cell_artifacts(selecting, world.catalog).test_features]
    assert read == [other, cell.dataset]
    for blind in (elsewhere, turned(elsewhere, tta_alpha="test_labels")):  # alpha at test time is not this track's
        assert not blind.selects_on_test
        assert [each.dataset for each in cell_artifacts(blind, world.catalog).test_features] == [other]


def test_a_drifting_stream_brings_few_classes_at_a_time_and_every_image_once(world: World) -> None:
    labels = torch.arange(10).repeat_interleave(20)
    order = drifting_order(labels, torch.Generator().manual_seed(3))
    assert sorted(order.tolist()) == list(range(200))
    assert max(len(part.unique()) for part in labels[order].split(20)) <= 5
    cell = world.pick("dmn", "tta_stream")
    shuffled, drifting = (task_of(world, one).test_images for one in (cell, turned(cell, stream="drifting")))
    size = len(shuffled)
    assert not torch.equal(shuffled.order("dmn", 0, size), drifting.order("dmn", 0, size))
    assert result_of(world, turned(cell, stream="drifting")).evaluations[0].total == size


def in_format(cell: Cell, precision: Precision) -> Cell:
    return replace(cell, backbone=replace(cell.backbone, precision=precision))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each pass through the tower whether it asks for bfloat16. It computes in float32, which is faster."""
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
    result = result_of(world, in_format(world.pick(method, shots=1), "bfloat16"))
    assert passes
    assert all(passes)
    assert result.manifest.precision == "bfloat16"
    assert measure(world.pick(method, shots=1), world.loaded).result.manifest.precision == "float32"


def test_a_run_without_a_gpu_refuses_tf32_before_it_starts(world: World) -> None:
    cells = tuple(in_format(cell, "tf32") for cell in world.grid.cells[:2])
    plan = make_plan(replace(world.grid, cells=cells), world.catalog, world.loaded.store)
    check_precisions(plan, gpus=1)
    with pytest.raises(UserError, match="tf32"):
        execute(plan, world.settings, RunOptions(local=True), ProgressCounter([]), print)


def test_features_belong_to_a_format_and_heads_to_all(world: World) -> None:
    cell = world.pick("linear_probe")
    ours, other = (cell_artifacts(each, world.catalog) for each in (cell, in_format(cell, "bfloat16")))
    assert ours.head == other.head
    assert ours.support_images == other.support_images
    assert ours.support_features.address != other.support_features.address
    assert ours.test_features[0].address != other.test_features[0].address


def test_a_format_that_the_device_does_not_have_is_refused_in_words(world: World) -> None:
    with pytest.raises(UserError, match="tf32"):
        world.loaded.backbone(in_format(world.pick("zero_shot"), "tf32").backbone)
