"""The disk space that a plan needs, and the refusal to start a plan without enough space."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bolt.clip.input_size import InputSize
from bolt.methods import METHODS
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import build
from orchestrator.artifacts.support_images import SupportImages
from orchestrator.catalog import Catalog
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.checks import bytes_to_build, check_disk_space, disk_line, free_bytes
from orchestrator.planning.cost import cell_gflops
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.plan_view import plan_view
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from tests.orchestrator.conftest import grid_text


@pytest.fixture(scope="module")
def plan(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Every track and every method, in an empty store."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "world.yaml").write_text(grid_text())
    return make_plan(load_grid(folder / "world.yaml", catalog), catalog, Store(folder / "store"))


def test_free_space_is_that_of_the_disk_where_the_store_will_be(tmp_path: Path) -> None:
    free = free_bytes(Store(tmp_path / "not" / "there" / "yet"))
    assert free is not None
    assert 0 < free <= shutil.disk_usage(tmp_path).total
    assert free_bytes(Store("memory://store")) is None


def test_a_plan_beyond_its_budget_or_the_free_space_is_refused_with_the_largest_kinds_and_hints(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, needed = Store(tmp_path), bytes_to_build(plan)
    check_disk_space(plan, store, needed)
    check_disk_space(plan, Store("memory://store"), needed)
    check_disk_space(replace(plan, missing=()), store, budget=1)
    with pytest.raises(UserError) as caught:
        check_disk_space(plan, store, needed - 1)
    assert str(caught.value).startswith("--disk-budget: ")
    assert "source models (2): fewer backbones or sources" in str(caught.value)
    for spec in plan.artifacts:  # every kind has a title and a hint
        with pytest.raises(UserError) as caught:
            check_disk_space(replace(plan, missing=(spec,)), store, budget=1)
        assert f"  {spec.title} (1): {spec.shrink_hint}" in str(caught.value)
    monkeypatch.setattr(type(plan.missing[0]), "size_bytes", lambda spec, catalog: 10**18)
    with pytest.raises(UserError, match=f"{tmp_path}: .* that are free; nothing was started"):
        check_disk_space(plan, store)


def test_the_plan_shows_the_disk_space_and_whether_it_is_too_small(plan: Plan, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for budget, shown in ((None, False), (1, True)):
        console = Console(width=200)
        with console.capture() as capture:
            console.print(plan_view(plan, store, budget))
        text = capture.get()
        assert disk_line(plan, store).partition(",")[0] in text
        assert ("--disk-budget: " in text) == shown


@pytest.mark.slow
def test_images_take_the_predicted_number_of_bytes(plan: Plan, catalog: Catalog, tmp_path: Path) -> None:
    settings = RunSettings(str(tmp_path), device="cpu")
    for kind in (Images, SupportImages):
        spec = next(spec for spec in plan.artifacts if isinstance(spec, kind))
        artifact = Store(tmp_path).artifact(build(spec, settings))
        took = artifact.path("pixels.bin").stat().st_size
        assert took == pytest.approx(spec.size_bytes(catalog), rel=0.01)


def test_small_images_are_predicted_at_their_own_size(catalog: Catalog, plan: Plan) -> None:
    ref = next(spec.dataset for spec in plan.artifacts if isinstance(spec, Images))
    cifar = replace(ref, name="cifar10")
    assert Images(cifar, "train", InputSize(224)).size_bytes(catalog) == 50_000 * 3 * 32**2
    assert Images(cifar, "test", InputSize(224)).size_bytes(catalog) == 10_000 * 3 * 224**2
    unknown = replace(ref, name="imagenet")
    assert Images(unknown, "test_whole", InputSize(112)).size_bytes(catalog) == 50_000 * 3 * round(224**2 * 4 / 3)


def test_test_time_adaptation_counts_two_strong_views_per_image_and_epoch(plan: Plan, catalog: Catalog) -> None:
    cell = next(cell for cell in plan.cells if cell.track == "tta" and cell.method.name == "bolt")
    images = catalog.dataset(cell.dataset.name).sizes.test
    epochs = cell.method.settings_dict()["epochs"]
    assert isinstance(epochs, int)
    trained = METHODS["bolt"].training_forwards * 2 * images * epochs
    forwards = images * (1 + epochs) + trained + images  # un-augmented and weak views, strong views, and scoring
    gflop = forwards * catalog.backbone(cell.backbone.name).gflops_per_image
    assert cell_gflops(cell, catalog) == pytest.approx(gflop)
