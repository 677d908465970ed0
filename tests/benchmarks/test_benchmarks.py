"""The benchmarks run: those of a GPU with tiny towers, every candidate of a training step, and a sweep of few cells."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import candidates, gpu, scale
from bolt.clip.tower_shape import TowerShape
from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_script

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.e2e
def test_all_five_measurements_run_and_say_what_they_found(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--scale", "tiny", "--output", str(tmp_path / "found.json")]
    done = run_script(FOLDER / "gpu.py", options)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    names = ("rates", "steps", "bits", "views", "packing")
    assert all(found[name] and name in done.stdout for name in names)
    assert not any("error" in row for name in names for row in found[name])
    assert {row["method"] for row in found["steps"]} == {"bolt", "lora", "full_finetune", "atlas"}
    assert {row["precision"] for row in found["steps"]} == {"float32", "bfloat16"}
    assert all(row["wall_ms"] > 0 for row in found["steps"])
    assert all(row["equal_bits"] for row in found["bits"])
    assert found["views"][0]["equal_to_host"]
    assert found["packing"][0]["steps_per_s"] > 0


@pytest.mark.e2e
@pytest.mark.parametrize(("script", "options"), [("images", ["--rounds", "1"]), ("labels", ["--width", "100"])])
def test_a_benchmark_of_images_runs(script: str, options: list[str]) -> None:
    """The one of stored images once called a function with a number in place of an ``InputSize``."""
    done = run_script(FOLDER / f"{script}.py", ["--images", "40", *options])
    assert done.returncode == 0, done.stderr
    assert "images" in done.stdout


SHAPE = TowerShape(32, 16, 256, 1, 4, 1024, 512, "quick_gelu")
"""As small as sixteen bases of twelve directions each allow."""


def test_every_candidate_takes_a_step() -> None:
    """SVF, LoRA-XS and VeRA once called a function with an argument that it no longer had."""
    images, labels = candidates.random_batch(SHAPE, 32, "cpu")
    trained = {}
    for name, candidate in candidates.CANDIDATES.items():
        ready = candidate(candidates.random_tower(SHAPE, "cpu"))
        begun = ready.begin()
        before = [tensor.detach().clone() for tensor in begun.trained]
        candidates.training_step(begun, SHAPE, ready.update)(images, labels)
        changed = any(not torch.equal(a, b) for a, b in zip(before, begun.trained, strict=True))
        assert changed == ready.update, name
        trained[name] = sum(tensor.numel() for tensor in begun.trained)
    assert trained["bolt"] == trained["bolt, dense"]
    assert trained["promptsrc"] < trained["maple"]
    assert trained["atlas"] < trained["bolt"] < trained["lora"] < trained["full_finetune"]


def test_a_measurement_that_fails_says_why_after_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(scale: gpu.Scale, device: str) -> Iterator[gpu.Row]:
        yield {"tower": "tiny"}
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(gpu.MEASUREMENTS, "views", fails)
    rows = list(gpu.rows_of("views", gpu.SCALES["tiny"], "cpu"))
    assert rows == [{"tower": "tiny"}, {"error": "RuntimeError: no such kernel"}]


CELLS = 20


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted(tmp_path: Path, give_database: GiveDatabase) -> None:
    give_database(tmp_path / "store" / "mlflow" / "mlflow.db")
    done = run_script(FOLDER / "scale.py", ["--folder", str(tmp_path), "--sizes", str(CELLS)])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == set(scale.COLUMNS), done.stderr
    assert min(found[name] for name in found.keys() - {"held"}) > 0
