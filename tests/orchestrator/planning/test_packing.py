"""What share of a GPU a cell requests, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bolt.methods import METHODS
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.core.events import Resources
from orchestrator.core.gpu_memory import CONTEXT_MIB, RESERVED_MEMORY
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import CostModel, held_mib
from orchestrator.planning.packing import Packing, smallest_share
from orchestrator.store.results import Result
from tests.helpers import cells as samples

GPU = 80 * 1024.0


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def cell(method: str = "linear_probe", shots: int = 4, dataset: str = "glyph-digits", seed: int = 1) -> Cell:
    """A cell of the shipped tiny backbone, whose sizes the catalog knows."""
    made = samples.cell(seed, method=method, shots=shots, dataset=dataset, backbone="tiny-clip")
    return replace(made, method=MethodRef(method, METHODS[method].version, ()))


def on_gpu(of: Cell, held: float) -> Result:
    """A result of a cell that ran on a GPU."""
    made = samples.result(of)
    return replace(made, manifest=replace(made.manifest, device="NVIDIA H100"), details={RESERVED_MEMORY: held})


def learned(*done: Result) -> CostModel:
    """A cost model that has learned from finished cells."""
    return CostModel(done=done)


def test_nothing_measured_is_assumed_and_said_to_be(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    assert [packing.demand(cell(method)).share for method in ("linear_probe", "bolt")] == [0.25, 1.0]
    assert packing.demand(cell()).summary == "4 (assumed)"
    assert Packing(catalog).demand(cell()).share == 0.25


def test_a_frozen_backbone_too_large_for_a_quarter_of_a_small_gpu_gets_more(catalog: Catalog) -> None:
    assert Packing(catalog, gpu_mib=2 * CONTEXT_MIB).demand(cell()).share == 1.0


@pytest.mark.parametrize(
    ("held", "share"), [(100, 1 / 16), (4000, 1 / 8), (12_000, 1 / 4), (30_000, 1 / 2), (60_000, 1.0), (200_000, 1.0)]
)
def test_the_smallest_share_that_holds_what_was_measured_and_some_more(
    catalog: Catalog, held: float, share: float
) -> None:
    demand = Packing(catalog, learned(on_gpu(cell("bolt"), held)), GPU).demand(cell("bolt", seed=2))
    assert (demand.share, demand.mib) == (share, held + CONTEXT_MIB)


def test_the_closest_measured_cell_counts(catalog: Catalog) -> None:
    done = [on_gpu(cell("bolt", 4), 4000), on_gpu(cell("bolt", 16), 12_000), on_gpu(cell("lora", 4), 30_000)]
    packing = Packing(catalog, learned(*done), GPU)
    assert packing.demand(cell("bolt", 4, dataset="glyph-inks")).share == 1 / 8
    assert packing.demand(cell("bolt", 12)).share == 1 / 4
    other_settings = replace(cell("bolt", 16), method=MethodRef("bolt", 1, (("top_k", 99),)))
    assert packing.demand(other_settings).share == 1 / 4
    assert packing.demand(replace(cell("bolt"), track="ood")).mib is None  # another track looks at more images


def test_finished_cells_teach_and_cells_that_ran_out_get_more(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    packing.learn(cell("bolt"), 4000)
    assert packing.demand(cell("bolt")).share == 1 / 8
    packing.outgrew(cell("bolt"), 1 / 8)
    assert packing.demand(cell("bolt", seed=7)).share == 1 / 4
    packing.outgrew(cell("bolt"), 1.0)
    assert packing.demand(cell("bolt")).share == 1.0


def test_what_was_measured_on_a_cpu_says_nothing_of_a_gpu(catalog: Catalog) -> None:
    on_cpu = samples.result(cell("bolt"))
    assert held_mib(on_cpu) == 0.0
    assert Packing(catalog, learned(on_cpu), GPU).demand(cell("bolt")).mib is None


def test_a_share_holds_all_there_is_at_most() -> None:
    assert smallest_share(GPU, GPU) == smallest_share(9 * GPU, GPU) == 1.0


def test_no_gpu_is_asked_for_where_none_is_used(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    here, cpu = RunSettings("s"), RunSettings("s", device="cpu")
    assert packing.resources(cell("bolt"), here, 8) == Resources(1, 1.0)
    assert packing.resources(cell("bolt"), here, 0) == packing.resources(cell("bolt"), cpu, 8) == Resources(1)


def test_a_plan_says_how_a_gpu_is_packed_and_by_what(catalog: Catalog, tmp_path: Path) -> None:
    from rich.console import Console

    from orchestrator.grid import load_grid
    from orchestrator.planning.plan import make_plan
    from orchestrator.planning.plan_view import packing_view
    from orchestrator.store import Store

    grid = load_grid("demo", catalog, only=["method=linear_probe,bolt", "track=fewshot"])
    plan = make_plan(grid, catalog, Store(tmp_path))
    probe = next(cell for cell in plan.todo if cell.method.name == "linear_probe")
    measured = replace(plan, done=(on_gpu(probe, 400),))
    with open(tmp_path / "out", "w") as stream:
        Console(width=200, file=stream).print(packing_view(measured, 40 * 2**30))
    text = Path(tmp_path, "out").read_text()
    assert "one GPU of 40.0 GiB holds" in text
    assert "16 (1000.0 MiB measured)" in text  # 400 and what CUDA takes, and a quarter more, sixteen times
    assert "1 (assumed)" in text
