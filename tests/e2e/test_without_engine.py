"""The project without the extra ``engine``: neither Ray nor MLflow can be imported."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
BLOCKER = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def invalidate_caches(self):
        pass

sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("ray", "mlflow") else found(name, package)
"""


@pytest.fixture
def orchestrator(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{PROJECT}", "BOLT_STORE": str(tmp_path / "store")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)

    return run


@pytest.mark.e2e
def test_a_grid_runs_in_one_process(orchestrator: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    refused = orchestrator("grid", "smoke")
    assert refused.returncode == 2
    assert "[engine]" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = orchestrator("grid", "smoke", "--local", "--only", "method=zero_shot,tip_adapter")
    assert done.returncode == 0, done.stderr
    assert "6 trials started" in done.stdout
    assert "MLflow is not installed" in done.stdout
    assert "No module" not in done.stdout + done.stderr
    for words in (["plan", "smoke"], ["report", "smoke"], ["results", "smoke"], ["doctor"], ["status", "smoke"]):
        done = orchestrator(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
    done = orchestrator("sync", "smoke")
    assert done.returncode != 0
    assert "[engine]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
