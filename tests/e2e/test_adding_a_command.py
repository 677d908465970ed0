"""The command in docs/adding-a-command.md runs."""

import re
import subprocess
from pathlib import Path

from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_forked

ROOT = Path(__file__).resolve().parents[2]

START = """
import seconds
from orchestrator.cli.app import app
from orchestrator.__main__ import main

LINE
main()
"""


def test_the_command_of_the_page_runs(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it changes the command line."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    page = (ROOT / "docs" / "adding-a-command.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    line = re.search(r"^app\.command.*$", page, re.MULTILINE)
    assert code is not None
    assert line is not None
    (tmp_path / "seconds.py").write_text(code[1], encoding="utf-8")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_forked(words, START.replace("LINE", line[0]), folder=tmp_path)

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
