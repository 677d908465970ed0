"""Commands that only read do not import PyTorch, MLflow or Ray: importing PyTorch alone takes two seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from tests.helpers.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = ("--help", "--version", "status", "data list", "backbones list", "sources list", "status demo --watch")

SCRIPT = """
import sys
from contextlib import suppress
from orchestrator.__main__ import main
with suppress(SystemExit):
    main()
print(*sorted({"torch", "torchvision", "open_clip", "ray", "mlflow", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


def run(store: Path, words: str) -> subprocess.CompletedProcess[str]:
    """Run a command line; the last line of its standard error names the heavy packages it has imported."""
    command = [sys.executable, "-c", SCRIPT, *words.split()]
    environment = {**os.environ, "BOLT_STORE": str(store)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, env=environment)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_reads_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    assert run(tmp_path, words).stderr.splitlines()[-1] == ""


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"{orchestrator.__version__}\n"
