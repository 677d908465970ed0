"""A package that is installed beside the project adds a method and a catalog file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GiveDatabase
from tests.helpers.waiting import TIMEOUT
from tests.helpers.warm_process import run_forked

ROOT = Path(__file__).resolve().parents[2]
GRID = """
title: A method from another package
protocol: strict
blocks:
  - {track: fewshot, backbones: [tiny-clip], datasets: [glyph-inks], shots: [1], seeds: [1],
     methods: [prototype]}
"""


def orchestrator(folder: Path, *words: str, beside: Path | None = None, code: int = 0) -> str:
    """Run a command, with a folder of packages if ``beside`` is one; return its errors."""
    if beside is None:
        done = run_forked(words, folder=folder)
    else:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(beside), str(ROOT)])}
        command = [sys.executable, "-m", "orchestrator", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(ROOT / "examples" / "method_package", folder / "source")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=TIMEOUT)
    return folder / "site"


@pytest.mark.e2e
def test_workers_find_its_method_and_the_manifest_names_it(
    installed: Path, tmp_path: Path, give_database: GiveDatabase
) -> None:
    give_database(tmp_path / "store" / "mlflow" / "mlflow.db")
    (tmp_path / "grid.yaml").write_text(GRID)
    orchestrator(tmp_path, "grid", "grid.yaml", "--store", "store", beside=installed)
    (result,) = (tmp_path / "store" / "results").glob("*prototype*.json")
    assert json.loads(result.read_text())["manifest"]["versions"]["prototype-method"] == "0.1"
    orchestrator(tmp_path, "merge", "store", "--store", "other")
    assert (tmp_path / "other" / "results" / result.name).read_bytes() == result.read_bytes()


def test_its_catalog_is_read_and_a_grid_without_it_names_its_method(installed: Path, tmp_path: Path) -> None:
    orchestrator(tmp_path, "data", "list", "--domain", "my-lab", beside=installed)
    orchestrator(tmp_path, "data", "list", "--domain", "my-lab", code=2)
    (tmp_path / "grid.yaml").write_text(GRID)
    assert "prototype" in orchestrator(tmp_path, "plan", "grid.yaml", code=2)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bolt.methods]\nmine = no_such_module\n")
    refused = orchestrator(tmp_path, "plan", "smoke", beside=tmp_path / "site", code=2)
    assert "broken 1.0" in refused
    assert "Traceback" not in refused
