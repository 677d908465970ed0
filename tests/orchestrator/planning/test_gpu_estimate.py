"""The estimated hours of a plan on a kind of GPU."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bolt.methods import METHODS
from orchestrator.catalog import Catalog
from orchestrator.cli.app import app
from orchestrator.grid import load_grid
from orchestrator.planning.cost import cell_gflops
from orchestrator.planning.estimate import GPU_TFLOPS, assumed_gpu_tflops, gpu_hours
from orchestrator.planning.gpu_speeds import GPU_KINDS, PRECISIONS, find_gpu, sustained_tflops
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.machine import Gpu

ONLY = ("backbone=vit-l-14,vit-b-32", "dataset=dtd", "k=1,16", "seed=1,2")


@pytest.fixture(scope="module")
def plan(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """One real dataset, two towers, all few-shot methods, in an empty store."""
    return make_plan(load_grid("fewshot", catalog, only=ONLY), catalog, Store(tmp_path_factory.mktemp("store")))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("rtx4090", "4090"),
        ("NVIDIA GeForce RTX 4090", "4090"), ("NVIDIA L4", "l4"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_its_short_name_and_by_that_of_its_driver(name: str, key: str) -> None:
    assert find_gpu(name) is GPU_KINDS[key]


def test_the_command_prints_the_hours_and_proposes_a_kind_before_anything_is_read(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["plan", "smoke", "--store", str(tmp_path), "--gpu", "a100"])
    assert ended.exit_code == 0, ended.output
    assert all(word in " ".join(ended.output.split()) for word in ("NVIDIA A100", *PRECISIONS, "data sheet"))
    ended = CliRunner().invoke(app, ["plan", "no-such-grid", "--gpu", "h20"])
    assert isinstance(ended.exception, UserError)
    assert all(word in str(ended.exception) for word in ("--gpu", "h200"))


def test_larger_towers_sustain_more_operations_a_second() -> None:
    for gpu in GPU_KINDS.values():
        assert gpu.source
        assert 0 < gpu.peaks["float32"] <= gpu.peaks.get("tf32", 1e9) <= gpu.peaks.get("bfloat16", 1e9)
    h200, towers = find_gpu("h200"), (1, 8.8, 20, 35, 162, 500)
    rates = {p: [sustained_tflops(h200, p, gflops) for gflops in towers] for p in PRECISIONS}
    for found in rates.values():
        assert found == sorted(found)
        assert (found[0], found[-1]) == (found[1], found[-2])
    assert rates["bfloat16"][1] == pytest.approx(100, rel=0.02)  # measured: 638 GFLOP in 6.34 ms
    assert rates["tf32"][3] == pytest.approx(97, rel=0.03)  # measured: 2,487 GFLOP in 25.6 ms
    assert "bfloat16" not in find_gpu("t4").peaks


def test_the_speed_of_this_machines_gpus_is_that_of_their_kind() -> None:
    """The first estimate of a run once assumed 20 TFLOP/s for any GPU."""
    a100, t4, other = (Gpu(0, name, None, 0, 1) for name in ("NVIDIA A100-SXM4-40GB", "Tesla T4", "Made-up 9"))
    assert assumed_gpu_tflops([a100]) == pytest.approx(0.20 * 156, rel=0.02)
    assert assumed_gpu_tflops([a100, t4]) == assumed_gpu_tflops([t4]) < 8.1
    assert assumed_gpu_tflops([other]) == assumed_gpu_tflops([]) == GPU_TFLOPS


def test_hours_are_those_of_cells_and_missing_artifacts_at_each_towers_rate(plan: Plan, catalog: Catalog) -> None:
    h200 = find_gpu("h200")
    hours = gpu_hours(plan, h200)
    assert list(hours) == list(PRECISIONS)
    wanted = 0.0
    for backbone in ("vit-b-32", "vit-l-14"):
        cells = sum(cell_gflops(cell, catalog) for cell in plan.todo if cell.backbone.name == backbone)
        specs = [spec for spec in plan.missing if getattr(getattr(spec, "backbone", None), "name", "") == backbone]
        gflop = cells + sum(spec.gflops(catalog) for spec in specs)
        wanted += gflop / sustained_tflops(h200, "tf32", catalog.backbone(backbone).gflops_per_image) / 3.6e6
    assert hours["tf32"] == pytest.approx(wanted)
    assert hours["float32"] > hours["tf32"] > hours["bfloat16"]


def test_a_step_counts_what_its_method_says(plan: Plan, catalog: Catalog) -> None:
    """A training step of BOLT once counted as three forward passes, as in full fine-tuning."""
    lora, bitfit, svf = (
        next(c for c in plan.todo if c.method.name == name and c.shots == 16 and c.backbone.name == "vit-l-14")
        for name in ("lora", "bitfit", "svf")
    )
    assert cell_gflops(lora, catalog) < cell_gflops(bitfit, catalog) < cell_gflops(svf, catalog)
    assert METHODS["bolt"].training_forwards < METHODS["full_finetune"].training_forwards == 3
