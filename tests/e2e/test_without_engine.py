"""The project without the extra ``engine``: neither Ray nor MLflow can be imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


COMMANDS = """
import contextlib, io, json, sys
from orchestrator.__main__ import main

ends = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    code, output, errors = 0, *(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ends.append([code, *(stream.buffer.getvalue().decode() for stream in (output, errors))])
print(json.dumps(ends))
"""
"""Runs commands one after the other in one process, whose imports take longer than the commands."""


class End(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    errors: str


@pytest.fixture
def orchestrator(tmp_path: Path) -> Callable[..., list[End]]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{PROJECT}", "BOLT_STORE": str(tmp_path / "store")}

    def run(*commands: str) -> list[End]:
        script = [sys.executable, "-c", COMMANDS, json.dumps([command.split() for command in commands])]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return [End(*end) for end in json.loads(done.stdout)]

    return run


@pytest.mark.e2e
def test_a_grid_runs_in_one_process(orchestrator: Callable[..., list[End]]) -> None:
    refused, ran, *read, synced = orchestrator(
        "grid smoke", "grid smoke --local --only method=zero_shot,tip_adapter", "plan smoke", "report smoke",
        "results smoke", "doctor", "status smoke", "sync smoke",
    )  # fmt: skip
    assert refused.code == 2
    assert "[engine]" in refused.errors
    assert "Traceback" not in refused.errors
    assert ran.code == 0, ran.errors
    assert "6 trials started" in ran.output
    assert "MLflow is not installed" in ran.output
    assert "No module" not in ran.output + ran.errors
    for end in read:
        assert (end.code, "Traceback" in end.errors) == (0, False), end
    assert synced.code != 0
    assert "[engine]" in synced.output + synced.errors
    assert "Traceback" not in synced.errors
