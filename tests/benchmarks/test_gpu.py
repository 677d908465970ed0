"""The measurements for a GPU run through on a CPU, with tiny towers."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import pytest
import torch

from bolt.methods.common import composition
from bolt.training.captured import WARM_UPS
from tests.helpers.recorded_operations import RecordedOperations
from tests.helpers.warm_process import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def measure(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT, ["--device", "cpu", "--scale", "tiny", "--output", str(output), *options])


@pytest.mark.e2e
def test_all_eight_measurements_run_and_say_what_they_found(tmp_path: Path) -> None:
    done = measure(tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    names = ("rates", "steps", "bits", "transfers", "atlas", "views", "packing", "graphs")
    assert all(found[name] and name in done.stdout for name in names)
    assert not any("error" in row for name in names for row in found[name])
    assert {row["method"] for row in found["steps"]} == {"bolt", "lora", "full_finetune", "atlas"}
    assert {row["precision"] for row in found["steps"]} == {"float32", "bfloat16"}
    assert all(row["wall_ms"] > 0 and row["busy_share"] is None for row in found["steps"])
    assert all(row["equal_bits"] for row in found["bits"])
    assert found["views"][0]["equal_to_host"]
    assert found["packing"][0]["steps_per_s"] > 0
    assert {row["method"] for row in found["graphs"]} == {"bolt", "lora", "full_finetune", "atlas"}
    assert all(row["launched_ms"] > 0 and row["captured_ms"] is None for row in found["graphs"])


@pytest.mark.e2e
@pytest.mark.parametrize(("limit", "fails"), [("100", False), ("0.01", True)])
def test_a_measurement_in_a_process_of_its_own_gives_its_rows_or_its_error(
    tmp_path: Path, limit: str, fails: bool
) -> None:
    done = measure(tmp_path / "found.json", "--only", "transfers", "--isolate", "--limit", limit)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (done.returncode != 0) == fails, done.stderr
    assert ("error" in found["transfers"][0]) == fails
    assert ("transfers" in done.stderr) == fails


@pytest.mark.parametrize("method", ["bolt", "lora", "full_finetune", "atlas"])
def test_a_step_with_a_recorder_is_captured_and_gives_the_same_bits(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    gpu_steps = importlib.import_module("gpu_steps")
    monkeypatch.setattr(composition, "compares_values", lambda device: False)
    shape, recorder, ends = gpu_steps.SCALES["tiny"].towers["tiny"], RecordedOperations(), []
    for given in (None, recorder):
        trainable = gpu_steps.METHODS[method](gpu_steps.random_tower(shape, "cpu"), 2)
        step = gpu_steps.training_step(trainable, shape, recorder=given)
        for _ in range(WARM_UPS + 3):
            step(*gpu_steps.random_batch(shape, 4, "cpu"))
        ends.append([tensor.detach() for tensor in trainable.parameters])
    assert recorder.repeated == 3
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("method", ["bolt", "full_finetune"])
def test_nearly_all_operations_of_a_step_are_in_the_part_that_is_captured(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    gpu_steps = importlib.import_module("gpu_steps")
    passes, update = gpu_steps.count_operations(gpu_steps.SCALES["full"].towers["B/32"], method)
    assert 0 < update < 0.03 * passes
