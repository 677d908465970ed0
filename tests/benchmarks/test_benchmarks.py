"""The benchmarks run: on a GPU's measurements with tiny towers, on every candidate of a step, on a few cells."""

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import scale
from bolt.clip.tower_shape import TowerShape
from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def measure(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT, ["--device", "cpu", "--scale", "tiny", "--output", str(output), *options])


@pytest.mark.e2e
def test_all_five_measurements_run_and_say_what_they_found(tmp_path: Path) -> None:
    done = measure(tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    names = ("rates", "steps", "bits", "views", "packing")
    assert all(found[name] and name in done.stdout for name in names)
    assert not any("error" in row for name in names for row in found[name])
    assert {row["method"] for row in found["steps"]} == {"bolt", "lora", "full_finetune", "atlas"}
    assert {row["precision"] for row in found["steps"]} == {"float32", "bfloat16"}
    assert all(row["wall_ms"] > 0 and row["busy_share"] is None for row in found["steps"])
    assert all(row["equal_bits"] for row in found["bits"])
    assert found["views"][0]["equal_to_host"]
    assert found["packing"][0]["steps_per_s"] > 0


@pytest.mark.e2e
@pytest.mark.parametrize(("limit", "fails"), [("100", False), ("0.01", True)])
def test_an_isolated_measurement_gives_its_rows_or_its_error(tmp_path: Path, limit: str, fails: bool) -> None:
    done = measure(tmp_path / "found.json", "--only", "views", "--isolate", "--limit", limit)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (done.returncode != 0) == fails, done.stderr
    assert ("error" in found["views"][0]) == fails
    assert ("views" in done.stderr) == fails


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHAPE = TowerShape(32, 16, 256, 1, 4, 1024, 512, "quick_gelu")
"""As small as sixteen bases of twelve directions each allow."""


def test_every_candidate_takes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """SVF, LoRA-XS and VeRA once called a function with an argument that it no longer had."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    methods, step = importlib.import_module("methods"), importlib.import_module("step")
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 100, (32,))
    trained = {}
    for name, candidate in methods.CANDIDATES.items():
        ready = candidate(step.random_tower(SHAPE, "cpu"))
        forward, tensors, loss = ready.begin()
        before = [tensor.detach().clone() for tensor in tensors]
        step.make_step(forward, tensors, images, labels, ready.update, loss)()
        if ready.update:
            assert any(not torch.equal(a, b) for a, b in zip(before, tensors, strict=True)), name
        trained[name] = sum(tensor.numel() for tensor in tensors)
    assert trained["promptsrc"] < trained["maple"]
    assert trained["atlas"] < trained["bolt"] < trained["lora"] < trained["full_finetune"]


CELLS = 20


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted(
    tmp_path: Path, give_database: GiveDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is run in this process, and starts the process of its size."""
    give_database(tmp_path / "store" / "mlflow" / "mlflow.db")
    monkeypatch.setattr(scale, "scratch", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(sys, "argv", ["scale.py", "--sizes", str(CELLS)])
    scale.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [str(CELLS)])
    found = dict(zip(scale.COLUMNS, map(float, row.split()[1:]), strict=True))
    assert min(found[name] for name in ("fanout_ms", "pool_ms", "start_s", "tracked_ms", "plain_ms")) > 0
