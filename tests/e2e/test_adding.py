"""The code on the pages about adding a method, a track, a command and a kind of artifact runs."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.artifacts.spec import ArtifactCache, build, with_inputs
from orchestrator.catalog import backbone_ref, dataset_ref, load_catalog
from orchestrator.core.settings import RunSettings
from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_forked

DOCS = Path(__file__).resolve().parents[2] / "docs"
START = """
import seconds
from orchestrator.cli.app import app
from orchestrator.__main__ import main

LINE
main()
"""
GRID = """
title: A new method
fine_tuning: {epochs: 1, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}
blocks:
  - {track: fewshot, backbones: [tiny-clip], datasets: [glyph-inks], sources: leave_one_out, shots: [1], seeds: [1],
     methods: [zero_shot, prototype]}
"""


def block(page: str, language: str = "python") -> str:
    """Return the first block of code of a page."""
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_command_of_the_page_runs(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it changes the command line."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    (line,) = re.findall(r"^app\.command.*$", (DOCS / "adding-a-command.md").read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "seconds.py").write_text(block("adding-a-command.md"), encoding="utf-8")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_forked(words, START.replace("LINE", line), folder=tmp_path)

    before = run("seconds", "smoke")
    assert before.returncode == 2
    assert "smoke" in before.stderr
    assert "Traceback" not in before.stderr
    one_cell = ("--only", "method=zero_shot", "--limit", "1", "--local")
    done = run("grid", "smoke", *one_cell)
    assert done.returncode == 0, done.stderr
    after = run("seconds", "smoke")
    assert after.returncode == 0, after.stderr
    assert re.search(r"zero_shot\W+1\W+\d+\.\d\d", after.stdout)


def test_the_method_of_the_page_runs(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it registers the method."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    (tmp_path / "prototype.py").write_text(block("adding-a-method.md"))
    (tmp_path / "grid.yaml").write_text(GRID)
    script = "import bolt.methods, prototype; from orchestrator.__main__ import main; main()"
    done = run_forked(["grid", "grid.yaml", "--local", "--store", "runs"], script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "results").glob("*prototype*.json"))) == 1
    assert "Prototypes" in done.stdout
    page = (DOCS / "adding-a-method.md").read_text(encoding="utf-8")
    command = re.search(r"`python -m orchestrator grid (.*)`", page)
    assert command is not None
    planned = run_forked(["plan", *shlex.split(command[1])], script, folder=tmp_path)
    assert planned.returncode == 0, planned.stderr


def test_the_track_of_the_page_is_measured_and_reported(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it registers the track."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    for language, name in (("python", "from_test.py"), ("yaml", "grid.yaml")):
        (tmp_path / name).write_text(block("adding-a-track.md", language))
    script = (
        "from from_test import FROM_TEST; "
        "from orchestrator.tracks import TRACKS; TRACKS[FROM_TEST.name] = FROM_TEST; "
        "from orchestrator.__main__ import main; main()"
    )
    done = run_forked(["grid", "grid.yaml", "--local", "--store", "runs"], script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "results").glob("*.json")]
    assert {result["cell"]["track"] for result in results} == {"from_test"}
    scored = {result["cell"]["method"]["name"]: result["evaluations"][0]["total"] for result in results}
    # The largest support that is stored has 16 images of each of 8 classes.
    assert scored == {"zero_shot": 600, "linear_probe": 600 - 16 * 8}
    page_of_report = (tmp_path / "runs" / "reports" / "grid" / "index.html").read_text()
    assert "few-shot from the test split" in page_of_report


def test_the_kind_of_the_page_is_built_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mean_feature.py").write_text(block("adding-an-artifact-kind.md"))
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("mean_feature").MeanFeature
    monkeypatch.delitem(sys.modules, "mean_feature")
    catalog = load_catalog()
    entry = catalog.backbone("tiny-clip")
    where = backbone_ref(entry), dataset_ref(catalog.dataset("glyph-inks"), None), entry.input_size
    spec, settings = kind(*where), RunSettings(str(tmp_path / "store"), device="cpu")
    for each in with_inputs([spec]):
        build(each, settings)
    loaded = ArtifactCache(settings)
    mean_D = loaded.get(spec)
    (features,) = spec.inputs
    assert torch.equal(mean_D, loaded.get(features).mean(0))
    assert mean_D.nbytes == spec.size_bytes(catalog)
    assert loaded.artifact(spec.address).meta["images"] == catalog.dataset("glyph-inks").sizes.test
    assert (spec.gflops(catalog), spec.gpu_share) == (0.0, 0.0)
