"""The measurements for a GPU run through on a CPU, with tiny towers."""

import json
import subprocess
from pathlib import Path

import pytest

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
