"""The share of a GPU that a cell asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bolt.clip.input_size import InputSize
from bolt.methods import METHODS
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.source_model import SourceModel
from orchestrator.catalog import Catalog
from orchestrator.catalog.text_sizes import text_sizes
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.core.events import Resources
from orchestrator.core.gpu_memory import CONTEXT_MIB
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid import load_grid
from orchestrator.planning.cost import CostModel, cell_gflops
from orchestrator.planning.packing import Packing, smallest_share
from orchestrator.planning.plan import make_plan
from orchestrator.planning.plan_view import packing_view
from orchestrator.store import Store
from orchestrator.tracks import TRACKS
from tests.helpers import cells as samples
from tests.orchestrator.planning.test_cost import on_gpu

GPU = 80 * 1024.0


def cell(method: str = "linear_probe", shots: int = 4, dataset: str = "glyph-digits", seed: int = 1) -> Cell:
    """Return a cell of the shipped tiny backbone, whose sizes are in the catalog."""
    made = samples.cell(seed, method=method, shots=shots, dataset=dataset, backbone="tiny-clip")
    return replace(made, method=MethodRef(method, METHODS[method].version, ()))


def test_without_measurements_shares_are_assumed_and_marked_as_assumed(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    assert [packing.share(cell(method)) for method in ("linear_probe", "bolt")] == [0.25, 0.25]
    assert packing.memory_mib(cell()) is None
    assert [Packing(catalog).share(cell(method)) for method in ("linear_probe", "bolt")] == [0.25, 1.0]
    assert Packing(catalog, gpu_mib=GPU, gpus=8).request(cell("bolt"), threads=1) == Resources(1, 0.25)
    assert packing.request(cell("bolt"), threads=1) == Resources(1), "no GPU where the run has none"
    assert smallest_share(GPU, GPU) == smallest_share(9 * GPU, GPU) == 1.0


@pytest.mark.parametrize(
    ("backbone", "gpu_gib", "sources", "share"),
    [
        ("vit-b-32", 140, 16, 0.25), ("vit-b-32", 24, 3, 0.25), ("vit-b-32", 16, 3, 0.5), ("vit-b-16", 16, 3, 0.5),
        ("vit-l-14", 80, 0, 0.25), ("vit-l-14", 80, 16, 0.5), ("vit-l-14", 24, 3, 1.0),
    ],
)  # fmt: skip
def test_a_cell_that_was_not_measured_asks_for_what_training_all_weights_takes(
    catalog: Catalog, backbone: str, gpu_gib: float, sources: int, share: float
) -> None:
    """Measured on an H200 at B/32 with 16 sources: BOLT reserves 1.5 GiB, LoRA 1.4, full fine-tuning 2.3, aTLAS 6.7."""
    named = tuple(SourceRef(f"source-{number}", "") for number in range(sources))
    unmeasured = replace(cell("atlas"), backbone=BackboneRef(backbone, ""), sources=named)
    assert Packing(catalog, gpu_mib=gpu_gib * 1024).share(unmeasured) == share


def test_the_work_of_a_text_side_grows_with_classes_and_steps(catalog: Catalog) -> None:
    few, many = (cell_gflops(cell("coop", dataset=name), catalog) for name in ("glyph-digits", "glyph-capitals"))
    assert 0 < few < many
    assert cell_gflops(cell("coop", 16), catalog) > few
    assert cell_gflops(cell("task_res"), catalog) == 0
    both = replace(cell("lora"), method=MethodRef("lora", METHODS["lora"].version, (("towers", "both"),)))
    assert cell_gflops(both, catalog) > cell_gflops(cell("lora"), catalog)


@pytest.mark.parametrize(
    ("name", "width", "layers"), [("vit-b-32", 512, 12), ("vit-l-14", 768, 12), ("tiny-clip", 64, 2)]
)
def test_the_text_towers_sizes_are_those_of_the_model(catalog: Catalog, name: str, width: int, layers: int) -> None:
    sizes = text_sizes(catalog.backbone(name))
    assert (sizes.width, sizes.layers) == (width, layers)


@pytest.mark.parametrize(
    ("held", "share"), [(100, 1 / 16), (4000, 1 / 8), (12_000, 1 / 4), (30_000, 1 / 2), (60_000, 1.0), (200_000, 1.0)]
)
def test_a_share_is_the_smallest_that_holds_the_measured_memory(catalog: Catalog, held: float, share: float) -> None:
    packing = Packing(catalog, CostModel(done=[on_gpu(cell("bolt"), held)]), GPU)
    assert packing.share(cell("bolt", seed=2)) == share
    assert packing.memory_mib(cell("bolt", seed=2)) == held + CONTEXT_MIB


def test_shares_follow_the_nearest_measured_cell(catalog: Catalog) -> None:
    done = [on_gpu(cell("bolt", 4), 4000), on_gpu(cell("bolt", 16), 12_000), on_gpu(cell("lora", 4), 30_000)]
    packing = Packing(catalog, CostModel(done=done), GPU)
    assert packing.share(cell("bolt", 4, dataset="glyph-inks")) == 1 / 8
    assert packing.share(cell("bolt", 12)) == 1 / 4
    other_settings = replace(cell("bolt", 16), method=MethodRef("bolt", 1, (("top_k", 99),)))
    assert packing.share(other_settings) == 1 / 4
    assert packing.memory_mib(replace(cell("bolt"), track="ood")) is None  # another track reads more images


def test_finished_cells_change_shares_and_cells_that_ran_out_of_memory_get_more(catalog: Catalog) -> None:
    costs = CostModel()
    packing = Packing(catalog, costs, GPU)
    costs.learn_memory(cell("bolt"), 4000)
    assert packing.share(cell("bolt")) == 1 / 8
    packing.learn_oom(cell("bolt"), 1 / 8)
    assert packing.share(cell("bolt", seed=7)) == 1 / 4
    packing.learn_oom(cell("bolt"), 1.0)
    assert packing.share(cell("bolt")) == 1.0


def test_a_plan_shows_how_many_cells_a_gpu_holds_and_what_that_is_based_on(catalog: Catalog, tmp_path: Path) -> None:
    grid = load_grid("demo", catalog, only=["method=linear_probe,bolt", "track=fewshot"])
    plan = make_plan(grid, catalog, Store(tmp_path))
    probe = next(cell for cell in plan.todo if cell.method.name == "linear_probe")
    console = Console(width=200)
    with console.capture() as shown:
        console.print(packing_view(replace(plan, done=(on_gpu(probe, 400),)), 40 * 2**30))
    assert "one GPU of 40.0 GiB holds" in shown.get()
    assert "16 (1000.0 MiB measured)" in shown.get()  # 400 MiB, and 600 MiB for CUDA
    assert "4 (assumed)" in shown.get()


def test_a_track_with_another_methods_takes_their_defaults(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """BOLT trains for fewer epochs on the track ``tta``."""
    monkeypatch.setitem(TRACKS, "own", replace(TRACKS["tta"], name="own", method_track="tta"))
    monkeypatch.setitem(TRACKS, "plain", replace(TRACKS["tta"], name="plain", method_track="plain"))
    gflops = {track: cell_gflops(replace(cell("bolt"), track=track), catalog) for track in ("tta", "own", "plain")}
    assert gflops["own"] == gflops["tta"] < gflops["plain"]


@pytest.mark.parametrize(("backbone", "share"), [("vit-b-32", 0.25), ("vit-b-16", 0.25), ("vit-l-14", 1.0)])
def test_sources_share_a_gpu_by_their_memory(backbone: str, share: float, catalog: Catalog) -> None:
    source = SourceModel(
        BackboneRef(backbone, ""), DatasetRef("cub200", ""), InputSize(224), SourceRecipe(epochs=1), ""
    )
    assert Packing(catalog, gpu_mib=GPU, gpus=1).share_of_build(source) == share
    assert Packing(catalog, gpus=1).share_of_build(source) == SourceModel.gpu_share
    assert Packing(catalog, gpu_mib=GPU).share_of_build(source) == 0
    smaller = replace(source, recipe=SourceRecipe(epochs=1, batch_size=32))
    assert smaller.gpu_mib(catalog) < source.gpu_mib(catalog) / 2 + 2**12
    head = Head(source.backbone, source.dataset, InputSize(224))
    assert Packing(catalog, gpu_mib=GPU, gpus=1).share_of_build(head) == Head.gpu_share
