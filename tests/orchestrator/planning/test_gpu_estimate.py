"""The hours that a plan takes on a kind of GPU, and the work of CPU cores beside it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bolt.methods import METHODS
from orchestrator.artifacts.host_work import HostWork
from orchestrator.artifacts.spec import ArtifactSpec
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.cli.app import app
from orchestrator.grid import load_grid
from orchestrator.planning.cost import cell_gflops
from orchestrator.planning.estimate import GPU_TFLOPS, assumed_gpu_tflops
from orchestrator.planning.gpu_estimate import PAPER_METHODS, Workload, cores_needed, gpu_seconds, gpu_view, workload
from orchestrator.planning.gpu_speeds import GPU_KINDS, PRECISIONS, find_gpu, sustained_tflops
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.machine import Gpu

ONLY = ("backbone=vit-l-14,vit-b-32", "dataset=dtd", "k=1,16", "seed=1,2")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def plan(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """One real dataset, two towers, all few-shot methods, in an empty store."""
    return make_plan(load_grid("fewshot", catalog, only=ONLY), catalog, Store(tmp_path_factory.mktemp("store")))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("rtx4090", "4090"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_a_gpu_is_found_by_its_short_name_and_by_that_of_its_driver(name: str, key: str) -> None:
    assert find_gpu(name) is GPU_KINDS[key]


def test_an_unknown_gpu_ends_with_a_proposal_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="h200"):
        find_gpu("h20")
    ended = CliRunner().invoke(app, ["plan", "no-such-grid", "--gpu", "h20"])
    assert isinstance(ended.exception, UserError)
    assert "--gpu" in str(ended.exception)


def test_every_kind_of_gpu_has_peaks_and_a_source_for_them() -> None:
    for gpu in GPU_KINDS.values():
        assert gpu.source
        assert 0 < gpu.peaks["float32"] <= gpu.peaks.get("tf32", 1e9) <= gpu.peaks.get("bfloat16", 1e9)


def test_larger_towers_sustain_more_operations_a_second() -> None:
    h200 = find_gpu("h200")
    towers = (1, 8.8, 20, 35, 162, 500)
    rates = {p: [sustained_tflops(h200, p, gflops) for gflops in towers] for p in PRECISIONS}
    for found in rates.values():
        assert found == sorted(found)
        assert found[0] == found[1]
        assert found[-1] == found[-2]
    assert rates["bfloat16"][1] == pytest.approx(200, rel=0.02)
    assert rates["tf32"][4] == pytest.approx(260, rel=0.02)
    assert "bfloat16" not in find_gpu("t4").peaks


def test_the_speed_of_this_machines_gpus_is_that_of_their_kind() -> None:
    """The first estimate of a run assumed 20 TFLOP/s of any GPU."""
    a100, t4, other = (Gpu(0, name, None, 0, 1) for name in ("NVIDIA A100-SXM4-40GB", "Tesla T4", "Made-up 9"))
    assert assumed_gpu_tflops([a100]) == pytest.approx(0.44 * 156, rel=0.02)
    assert assumed_gpu_tflops([a100, t4]) == assumed_gpu_tflops([t4]) < 8.1
    assert assumed_gpu_tflops([other]) == assumed_gpu_tflops([]) == GPU_TFLOPS


def test_work_is_that_of_the_cells_and_of_the_missing_artifacts(plan: Plan, catalog: Catalog) -> None:
    work = workload(plan, plan.todo)
    artifacts = sum(spec.gflops(catalog) for spec in plan.missing)
    assert sum(work.gflops.values()) == pytest.approx(sum(cell_gflops(c, catalog) for c in plan.todo) + artifacts)
    assert work.cells == len(plan.todo)
    assert work.uncounted == sum(not cell_gflops(cell, catalog) for cell in plan.todo)
    assert min(work.host.decoding, work.host.views, work.host.launching, work.host.sources) > 0
    papers = [cell for cell in plan.todo if cell.method.name in PAPER_METHODS]
    own = workload(plan, papers)
    assert own.gflops["vit-l-14"] < work.gflops["vit-l-14"]
    assert own.host.seconds < work.host.seconds
    assert workload(plan, papers[:1] * 2).host.sources <= own.host.sources


def test_a_step_counts_what_its_method_says(plan: Plan, catalog: Catalog) -> None:
    """BOLT's step was counted like one of full fine-tuning, three forward passes."""
    lora, bitfit, svf = (
        next(c for c in plan.todo if c.method.name == name and c.shots == 16 and c.backbone.name == "vit-l-14")
        for name in ("lora", "bitfit", "svf")
    )
    assert cell_gflops(lora, catalog) < cell_gflops(bitfit, catalog) < cell_gflops(svf, catalog)
    assert METHODS["bolt"].training_forwards < METHODS["full_finetune"].training_forwards == 3


def test_hours_follow_the_rate_of_each_tower(catalog: Catalog) -> None:
    work = Workload(1, 0, {"vit-b-32": 1e6, "vit-l-14": 1e6}, HostWork(views=5.0, launching=4.0))
    h200 = find_gpu("h200")
    assert gpu_seconds(work, catalog, h200, "bfloat16") == pytest.approx(1e3 / 200 + 1e3 / 430, rel=0.03)
    assert [cores_needed(work, seconds) for seconds in (10.0, 9.0, 5.0, 0.5, 0.0)] == [1, 1, 2, 18, 1]


def test_the_plan_shows_the_hours_of_each_precision_and_the_papers_methods_apart(plan: Plan) -> None:
    shown = io.StringIO()
    Console(width=250, file=shown).print(gpu_view(plan, find_gpu("h200")))
    lines = shown.getvalue().splitlines()
    whole, papers = (
        next(line for line in lines if line.startswith(start)) for start in ("all to do ", "the paper's methods ")
    )
    assert all(name in lines[1] for name in ("EFLOP", *PRECISIONS, "core-h"))
    hours = [[float(word.replace(",", "")) for word in line.split()[-5:]] for line in (whole, papers)]
    assert all(a > b for a, b in zip(*hours, strict=True))
    assert GPU_KINDS["h200"].source in shown.getvalue()


def test_artifacts_state_the_work_of_the_cpu(plan: Plan, catalog: Catalog) -> None:
    by_kind: dict[type[ArtifactSpec], HostWork] = {type(s): s.host_work(catalog) for s in plan.missing}
    busy = {kind.__name__ for kind, work in by_kind.items() if work.seconds}
    assert {"Images", "SupportImages", "SourceModel", "SourceDirections", "TestFeatures", "SupportFeatures"} <= busy


def test_the_command_prints_the_hours(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["plan", "smoke", "--store", str(tmp_path), "--gpu", "a100"])
    assert ended.exit_code == 0, ended.output
    assert "NVIDIA A100" in ended.output
