"""Artifacts and cells through the real parts, in this process, on three drawn datasets with the tiny CLIP."""

import os
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bolt.methods
from bolt.methods import METHODS, Method
from bolt.spectral.bases import pretrained_basis
from bolt.task.scoring import Predictions, predict_classes
from bolt.task.task import Adapted, Task
from orchestrator.artifacts.images import Images, OfTestSplit
from orchestrator.artifacts.source_model import Source, SourceModel, source_address
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec, artifact_cache, build
from orchestrator.artifacts.spectra import SourceSet
from orchestrator.cells import evaluation
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import measure
from orchestrator.cells.task import make_task
from orchestrator.cells.trial import classify_error, run_and_record
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.core.settings import RunSettings
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from orchestrator.store.predictions import parse_predictions
from tests.helpers.built_artifacts import BuiltArtifacts
from tests.orchestrator.conftest import World, build_world

GRID = """
title: Mini
description: Three drawn datasets.
fine_tuning: {epochs: 1, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits, glyph-inks, glyph-capitals]
    sources: {rule: leave_one_out, datasets: [glyph-digits, glyph-inks, glyph-capitals]}
    shots: [1, 2]
    seeds: [1]
    methods: [zero_shot, {linear_probe: {epochs: 2}}, tip_adapter, bolt_pooled, {bolt: {epochs: 2}}]
"""


@pytest.fixture(scope="module")
def world(artifacts: BuiltArtifacts, tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(tmp_path_factory.mktemp("mini"), GRID, artifacts)


@pytest.fixture
def loaded(world: World) -> ArtifactCache:
    return ArtifactCache(world.settings)


def test_a_plan_counts_what_is_there(world: World) -> None:
    plan = make_plan(world.grid, world.catalog, Store(world.settings.store_url))
    assert (len(plan.cells), len(plan.todo)) == (27, 27)  # 3 x (1 + 4 x 2)
    assert plan.missing == ()
    kinds = {type(spec).__name__ for spec in plan.artifacts}
    of_any_module = [*ArtifactSpec.__subclasses__(), *Source.__subclasses__(), *OfTestSplit.__subclasses__()]
    shipped = {kind.__name__ for kind in of_any_module if kind.__module__.startswith("orchestrator.")}
    assert kinds == shipped - {"Source", "OfTestSplit", "TestViewFeatures", "MetaStart", "AdoptedSource", "HeldOutFold"}


def test_inputs_come_before_what_reads_them(world: World, tmp_path: Path) -> None:
    seen: set[str] = set()
    for spec in make_plan(world.grid, world.catalog, Store(tmp_path)).missing:
        assert {upstream.address for upstream in spec.inputs} <= seen
        seen.add(spec.address)


def test_a_damaged_artifact_is_planned_anew(world: World, tmp_path: Path) -> None:
    made = RunSettings(str(tmp_path), device="cpu")
    store = Store(tmp_path)
    spec = next(spec for spec in make_plan(world.grid, world.catalog, store).missing if isinstance(spec, Images))
    build(spec, made)
    store.artifact(spec.address).path("labels.npy").write_bytes(b"x")
    assert spec in make_plan(world.grid, world.catalog, store).missing


@pytest.mark.parametrize("method", ["linear_probe", "bolt"])
def test_a_cell_gives_the_same_bits_and_its_predictions_agree_with_its_score(world: World, method: str) -> None:
    cell, loaded = world.pick(method), ArtifactCache(world.settings)
    first, second = (measure(cell, ArtifactCache(world.settings)) for _ in range(2))
    assert first.result.evaluations == second.result.evaluations
    assert first.result.curves == second.result.curves
    assert first.result.details == second.result.details
    assert first.predictions == second.predictions
    (score,), (split,) = first.result.evaluations, parse_predictions(first.predictions, first.result.evaluations)
    assert (score.total, score.correct) == (600, sum(correct for correct, _ in score.per_class))
    assert score.accuracy == pytest.approx(100 * score.correct / 600)
    images = loaded.get(Images(cell.dataset, "test", loaded.image_size(cell.backbone)))
    np.testing.assert_array_equal(split.labels, images.labels)
    by_class = np.bincount(split.labels[split.correct], minlength=len(score.per_class))
    assert by_class.tolist() == [correct for correct, _ in score.per_class]
    assert split.probability.min() > 255 // len(score.per_class)  # the predicted class has the largest probability
    assert split.rows is None


def test_towers_made_of_the_same_sources_are_scored_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of bolt_pooled with the same scale share predictions, which are equal to those of a fresh process."""
    cells = [world.pick("bolt_pooled", shots=shots) for shots in (1, 2)]
    alone = [measure(cell, ArtifactCache(world.settings)) for cell in cells]
    scored: list[int] = []

    def counted(total: int, *arguments: Any) -> Predictions:
        scored.append(total)
        return predict_classes(total, *arguments)

    monkeypatch.setattr(evaluation, "predict_classes", counted)
    loaded = ArtifactCache(world.settings)
    together = [measure(cell, loaded) for cell in (*cells, *cells)]
    assert len(scored) == 1 + len({each.result.details["alpha"] for each in alone}), "the 1 is zero-shot"
    for first, second in zip((*alone, *alone), together, strict=True):
        assert first.result.evaluations == second.result.evaluations
        assert first.predictions == second.predictions
    other = world.pick("bolt_pooled", dataset="glyph-digits")
    afresh, then = (measure(other, cache).result for cache in (ArtifactCache(world.settings), loaded))
    assert afresh.evaluations == then.evaluations


def test_what_a_method_made_of_its_sources_is_kept_for_its_next_cell_only(world: World, loaded: ArtifactCache) -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    def kept(cell: Cell) -> int:
        sources = CellInputs(cell, loaded).sources
        return sources.cached("a key", make)

    first, second = (world.pick("bolt", shots=shots) for shots in (1, 2))
    assert [kept(first), kept(second)] == [1, 1], "another number of shots has the same sources"
    assert kept(world.pick("bolt", dataset="glyph-digits")) == 2, "another target has other sources"
    assert kept(first) == 3, "one set is kept at a time"
    measure(world.pick("zero_shot"), loaded)
    assert kept(first) == 4, "another method's cell dropped it"


def test_what_cells_of_another_target_made_of_their_sources_is_freed(world: World, loaded: ArtifactCache) -> None:
    """A process keeps two sets of sources for their bases. Each set once kept stacked task vectors too."""

    class Stacks:
        """Stands for task vectors, which take gigabytes with larger towers."""

    sources = CellInputs(world.pick("bolt"), loaded).sources
    stacks = weakref.ref(sources.cached("stacks", Stacks))
    assert stacks() is not None
    assert CellInputs(world.pick("bolt", dataset="glyph-digits"), loaded).sources is not None
    assert stacks() is None


def test_zero_shot_is_its_own_reference(world: World, loaded: ArtifactCache) -> None:
    (score,) = measure(world.pick("zero_shot"), loaded).result.evaluations
    assert score.accuracy == score.accuracy_zero_shot > 15


def test_supports_are_the_same_for_all_methods_and_nested_in_k(world: World, loaded: ArtifactCache) -> None:
    cells = [world.pick("bolt", shots=1), world.pick("bolt", shots=2), world.pick("tip_adapter", shots=2)]
    small, large, other = (make_task(CellInputs(cell, loaded)).support for cell in cells)
    assert torch.equal(large.indices_N, other.indices_N)
    assert set(small.indices_N.tolist()) < set(large.indices_N.tolist())
    assert torch.bincount(large.labels_N).tolist() == [2] * 8


def test_cached_support_features_are_those_of_the_views(world: World, loaded: ArtifactCache) -> None:
    cell = world.pick("tip_adapter")
    support = make_task(CellInputs(cell, loaded)).support
    backbone = loaded.backbone(cell.backbone)
    for view in (0, 1, 10):
        direct = backbone.encode_images(support.pixels(view, torch.arange(len(support))))
        torch.testing.assert_close(support.features(view), direct, rtol=1e-5, atol=1e-5)


def test_the_mean_task_vector_is_that_of_the_files_in_float64(world: World, loaded: ArtifactCache) -> None:
    cell = world.pick("bolt")
    sources, frozen = CellInputs(cell, loaded).sources, loaded.backbone(cell.backbone).tower.state_dict_open_clip()
    assert cell.dataset.name not in sources.names
    files = [
        load_file(loaded.artifact(source_address(cell.backbone.name, source)).path("tower.safetensors"))
        for source in cell.sources
    ]
    for matrix in ("transformer.resblocks.0.attn.in_proj_weight", "proj"):
        mean = torch.stack([(file[matrix] - frozen[matrix]).double() for file in files]).mean(dim=0)
        torch.testing.assert_close(sources.mean_task_vector(matrix), mean.float(), rtol=0, atol=2**-40)


def test_a_basis_of_pretrained_weights_is_computed_once_for_all_targets(world: World, loaded: ArtifactCache) -> None:
    cell = world.pick("bolt")
    fewer = SourceSet(loaded, cell.backbone, cell.sources[:1])
    all_sources = SourceSet(loaded, cell.backbone, cell.sources)
    matrix = "transformer.resblocks.0.attn.out_proj.weight"
    weight = loaded.backbone(cell.backbone).tower.state_dict_open_clip()[matrix]
    kept = all_sources.pretrained_basis(matrix, weight, 5, trailing=False)
    assert fewer.pretrained_basis(matrix, weight, 5, trailing=False) is kept
    assert torch.equal(kept.u, pretrained_basis(weight, 5).u)
    assert not torch.equal(all_sources.pretrained_basis(matrix, weight, 5, trailing=True).u, kept.u)
    pooled = all_sources.pooled_basis(matrix, 5).pooled
    before = pooled.clone()
    pooled.mul_(2)  # as a method that trains it
    assert torch.equal(all_sources.pooled_basis(matrix, 5).pooled, before)


@pytest.fixture
def broken_methods() -> Iterator[None]:
    """Register methods that fail, for one test."""

    def raises(task: Task, settings: object) -> Adapted:
        raise RuntimeError("the method's own bug")

    def diverges(task: Task, settings: object) -> Adapted:
        classify = task.text_head
        return Adapted(classify=lambda features: classify(features) * float("nan"))

    def too_wide(task: Task, settings: object) -> Adapted:
        return Adapted(classify=lambda features: features.new_zeros(len(features), len(task.head_CD) + 1))

    def changes_tower(task: Task, settings: object) -> Adapted:
        for parameter in task.backbone.tower.parameters():
            parameter.mul_(1.5)
        return Adapted(classify=task.text_head)

    def changes_inputs(task: Task, settings: object) -> Adapted:
        """Train the head in place, and normalize features in place, as OpenAI's example does."""
        task.head_CD.add_(torch.arange(task.head_CD.shape[1]))
        return Adapted(classify=lambda features: features.mul_(2).add_(1) @ task.head_CD.T)

    zero_shot = METHODS["zero_shot"]

    def forgets_to_return(task: Task, settings: object) -> Any:
        task.text_head(task.head_CD)

    faults = (raises, diverges, too_wide, changes_tower, changes_inputs, forgets_to_return)
    made: dict[str, Method] = {
        name: replace(zero_shot, name=name, adapt=adapt) for name, adapt in ((each.__name__, each) for each in faults)
    }
    made["raises_beside_sources"] = replace(METHODS["bolt"], name="raises_beside_sources", adapt=raises)
    for method in made.values():
        bolt.methods.METHODS.register(method)
    yield
    for name in made:
        del bolt.methods.METHODS[name]


@pytest.mark.usefixtures("broken_methods")
@pytest.mark.parametrize(
    ("name", "reason"),
    [("raises", "the method's own bug"), ("diverges", "NaN or infinite logits"), ("too_wide", "logits for"),
     ("changes_tower", "changed a frozen tower"), ("forgets_to_return", "adapt returned NoneType")],
)  # fmt: skip
def test_a_cell_that_fails_is_recorded_with_its_reason(world: World, name: str, reason: str) -> None:
    zero_shot = world.pick("zero_shot")
    cell = replace(zero_shot, method=MethodRef(name, 1, zero_shot.method.settings))
    store = Store(world.settings.store_url)
    for attempt in (1, 2):
        outcome = run_and_record(cell, world.settings)
        assert outcome.kind == "failed"
        assert reason in outcome.error
        failure = store.read_failures()[cell.id]
        assert failure.attempts == attempt
        assert "Traceback" in Path(failure.log).read_text()
    assert cell.id not in store.result_ids()
    store.remove_failures([cell.id])


@pytest.mark.usefixtures("broken_methods")
@pytest.mark.parametrize("name", ["changes_tower", "changes_inputs"])
def test_what_a_method_changes_in_place_reaches_no_other_cell(world: World, tmp_path: Path, name: str) -> None:
    """Regression: a method that trained ``task.head_CD`` in place gave zero-shot its own accuracy, 53 for 21 %."""
    made = replace(world.settings, store_url=str(tmp_path / "store"))
    shutil.copytree(world.settings.store_url, made.store_url)
    cells = [world.pick(method) for method in ("zero_shot", "tip_adapter", "bolt_pooled")]
    alone = [measure(cell, ArtifactCache(made)) for cell in cells]
    run_and_record(replace(cells[0], method=MethodRef(name, 1, cells[0].method.settings)), made)
    for before, cell in zip(alone, cells, strict=True):
        after = measure(cell, artifact_cache(made))
        assert (before.result.evaluations, before.predictions) == (after.result.evaluations, after.predictions)


@pytest.mark.usefixtures("broken_methods")
@pytest.mark.parametrize(
    ("method", "file"),
    [
        ("tip_adapter", "features/*glyph-inks*support*/*/features.safetensors"),
        ("bolt", "spectra/*glyph-digits.top*/*/directions.safetensors"),
    ],
)
def test_a_cell_that_read_a_damaged_artifact_is_to_be_tried_again(
    world: World, tmp_path: Path, method: str, file: str
) -> None:
    """A failure by a damaged artifact is retried, because the cell did not cause it. A method's bug is not retried."""
    made = replace(world.settings, store_url=str(tmp_path / "store"))
    shutil.copytree(world.settings.store_url, made.store_url)
    store, cell = Store(made.store_url), world.pick(method)
    raises = replace(cell, method=MethodRef("raises", 1, world.pick("zero_shot").method.settings))
    damaged = next((tmp_path / "store").glob(file))
    os.truncate(damaged, damaged.stat().st_size // 2)
    for each in (cell, raises):
        assert run_and_record(each, made).kind == "failed"
    retryable = {name: failure.retryable for name, failure in store.read_failures().items()}
    assert retryable == {cell.id: True, raises.id: False}
    plan = make_plan(world.grid, world.catalog, store)
    assert cell in plan.todo
    (missing,) = plan.missing
    assert missing.address == str(damaged.parent.parent.relative_to(made.store_url))
    build(missing, made)
    assert run_and_record(cell, made).kind == "finished"
    assert cell.id not in store.read_failures()


def test_a_cell_that_misses_what_another_cell_has_discarded_is_to_be_tried_again(world: World, tmp_path: Path) -> None:
    made = replace(world.settings, store_url=str(tmp_path / "store"))
    shutil.copytree(world.settings.store_url, made.store_url)
    next((tmp_path / "store").glob("spectra/*glyph-digits.top*/manifest.json")).unlink()
    cell = world.pick("bolt")
    assert "is not built" in run_and_record(cell, made).error
    assert Store(made.store_url).read_failures()[cell.id].retryable


@pytest.mark.usefixtures("broken_methods")
def test_spectra_that_the_cell_cannot_have_read_are_not_looked_at(world: World, tmp_path: Path) -> None:
    """A method's bug was blamed on another backbone's damaged file, and all spectra of the store were read."""
    made = replace(world.settings, store_url=str(tmp_path / "store"))
    shutil.copytree(world.settings.store_url, made.store_url)
    cell = world.pick("bolt")
    cell = replace(cell, method=MethodRef("raises_beside_sources", 1, cell.method.settings))
    manifests = [
        tmp_path / "store" / "spectra" / name / "manifest.json" for name in ("b-16.total.3--0", "b-16.a.top16--0")
    ]
    for manifest in manifests:
        manifest.parent.mkdir()
        manifest.write_text("{}")
    assert "the method's own bug" in run_and_record(cell, made).error
    assert not Store(made.store_url).read_failures()[cell.id].retryable
    assert all(manifest.is_file() for manifest in manifests)


def test_a_store_that_takes_nothing_is_no_failure_of_the_cell(world: World) -> None:
    cell = world.pick("linear_probe")
    results = Path(world.settings.store_url, "results")
    aside = results.with_name("results-aside")
    results.mkdir(exist_ok=True)
    results.rename(aside)
    results.touch()
    try:
        outcome = run_and_record(cell, world.settings)
    finally:
        results.unlink()
        aside.rename(results)
    assert (outcome.kind, outcome.problem) == ("failed", "store")
    assert "Traceback" in outcome.traceback
    store = Store(world.settings.store_url)
    assert store.read_failure(cell.id) is None
    assert run_and_record(cell, world.settings).kind == "finished"
    store.files.remove(f"results/{cell.id}.json")


def test_a_finished_cell_is_on_record_and_planned_no_more(world: World) -> None:
    cell = world.pick("zero_shot", dataset="glyph-capitals")
    outcome = run_and_record(cell, world.settings)
    assert outcome.kind == "finished"
    plan = make_plan(world.grid, world.catalog, Store(world.settings.store_url))
    assert [result.cell for result in plan.done] == [cell]
    assert cell not in plan.todo
    manifest = plan.done[0].manifest
    assert manifest.threads == 1
    assert "torch" in manifest.versions
    assert all(Store(world.settings.store_url).artifact(address) is not None for address in manifest.artifacts)


def test_a_cell_of_another_code_version_is_refused(world: World, loaded: ArtifactCache) -> None:
    cell = world.pick("zero_shot")
    other = replace(cell, method=replace(cell.method, version=99))
    with pytest.raises(ValueError, match="version 99"):
        measure(other, loaded)


def test_scoring_a_source_leaves_the_backbone_as_it_is(world: World, artifacts: BuiltArtifacts, tmp_path: Path) -> None:
    """The source's weights were once loaded into tensors of the backbone, so every later task vector was zero."""
    made = RunSettings(str(tmp_path), device="cpu")
    backbone = world.grid.cells[0].backbone
    before = ArtifactCache(made).backbone(backbone).tower.state_dict_open_clip()
    specs = make_plan(world.grid, world.catalog, Store(tmp_path)).missing
    model = next(spec for spec in specs if isinstance(spec, SourceModel))
    artifacts.build(specs[: specs.index(model)], made)
    build(model, made)
    after = artifact_cache(made).backbone(backbone).tower.state_dict_open_clip()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_lack_of_memory_is_told_from_other_errors() -> None:
    assert classify_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")) == "gpu_memory"
    assert classify_error(RuntimeError("CUDA error: out of memory")) == "gpu_memory"
    assert classify_error(MemoryError()) == "main_memory"
    assert [classify_error(error) for error in (ValueError("out of memory"), OSError(28, "full"))] == ["", "store"]
