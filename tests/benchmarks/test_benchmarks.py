"""The benchmarks run: those of a GPU with tiny towers, every candidate of a training step, and a sweep of few cells."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, images, methods, scale
from benchmarks.steps import Script, during, random_backbone, random_task
from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_script

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.e2e
def test_all_five_measurements_run_and_say_what_they_found() -> None:
    done = run_script(FOLDER / "gpu.py", ["--device", "cpu"])
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {name: [row for row in rows if row["measured"] == name] for name in gpu.MEASUREMENTS}
    assert all(found.values())
    assert not any("error" in row for row in rows)
    assert {row["method"] for row in found["steps"]} == {"bolt", "lora", "full_finetune", "atlas"}
    assert {row["precision"] for row in found["steps"]} == {"float32", "bfloat16"}
    assert all(row["wall_ms"] > 0 for row in found["steps"])
    assert all(row["equal_bits"] for row in found["bits"])
    assert found["views"][0]["equal_to_host"]
    assert found["packing"][0]["steps_per_s"] > 0


@pytest.mark.e2e
def test_the_benchmark_of_images_runs() -> None:
    """It once called a function with a number in place of an ``InputSize``."""
    done = run_script(
        FOLDER / "images.py", ["--images", "32", "--rounds", "1", "--width", "100", "--model", "ViT-S-32-alt"]
    )
    assert done.returncode == 0, done.stderr
    assert all(f"| {way} |" in done.stdout for way in ("dataloader", "build", "read", "tower", "predict"))


def test_both_comparisons_of_the_benchmark_of_images_may_have_photographs_of_one_width(tmp_path: Path) -> None:
    assert images.photographs(tmp_path, 1) == images.photographs(tmp_path, 1, images.WIDTH)


def test_every_candidate_takes_steps_and_trains_what_the_method_trains() -> None:
    """SVF, LoRA-XS and VeRA once called a function with an argument that it no longer had."""

    def one_more_step() -> Script[int]:
        tensors = yield
        before = [tensor.detach().clone() for tensor in tensors]
        yield
        assert any(not torch.equal(old, new) for old, new in zip(before, tensors, strict=True)), name
        return sum(tensor.numel() for tensor in tensors)

    task, trained = random_task(random_backbone("S/32", "cpu", blocks=1), 32), {}
    for name in (*methods.RIVALS, *methods.MEASURED):
        trained[name] = during(methods.load(name, task, 32), one_more_step())
    assert trained["bolt"] == trained["bolt, dense"]
    assert trained["promptsrc"] < trained["maple"]
    assert trained["atlas"] < trained["bolt"] < trained["lora"] < trained["full_finetune"]


def test_a_measurement_that_fails_says_why_after_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(scale: gpu.Scale, device: str) -> Iterator[gpu.Row]:
        yield {"tower": "tiny"}
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(gpu.MEASUREMENTS, "views", fails)
    rows = list(gpu.rows_of("views", gpu.SCALES["cpu"], "cpu"))
    assert rows == [{"tower": "tiny"}, {"error": "RuntimeError: no such kernel"}]


CELLS = 20


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted(tmp_path: Path, give_database: GiveDatabase) -> None:
    for folder in ("store/mlflow", "plain"):
        give_database(tmp_path / folder / "mlflow.db")
    done = run_script(FOLDER / "scale.py", ["--folder", str(tmp_path), "--sizes", str(CELLS)])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == set(scale.COLUMNS), done.stderr
    assert min(found.values()) > 0
