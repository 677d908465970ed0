"""The commands of the docs that read a store run as they are printed, on a small store in the current folder."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GiveDatabase
from tests.docs.test_commands import commands
from tests.helpers.command import invoke

VERBS = ("status", "cells", "results", "inspect", "export", "report", "sync", "bundle")
GRID = "smoke"
PLACEHOLDERS = {
    "demo": GRID, "GRID": GRID, "NAME": GRID, "full": GRID, "eleven-fewshot": GRID, "$DATA": "data",
    "aid": "glyph-inks", "16": "1", "bolt,lora": "zero_shot", "FOLDER": "published", "my-model": "mine",
}  # fmt: skip
"""Words of the docs -> the grid, folder, dataset, k or method of the small store that replaces them."""
CELL_OF_A_PAGE = r"\bCELL\b|\bfewshot\.tiny-clip\.wardrobe\.\S+"
"""A cell in the docs: the word ``CELL``, or the id of one of the user's own dataset."""
ELSEWHERE = {"--watch": "needs a run", "--catalog": "needs a catalog file", "rerun": "tests/orchestrator/sharing"}
"""Words of commands that are not run here -> the reason, or the folder of tests that runs them."""


def readable() -> list[str]:
    """Return the commands that read a store, in the order of the pages, once each."""
    found = []
    for _, words in commands():
        parts = words.split()
        if parts[0] in VERBS and not set(parts) & set(ELSEWHERE):
            found.append(re.sub(CELL_OF_A_PAGE, "CELL", " ".join(PLACEHOLDERS.get(part, part) for part in parts)))
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> Path:
    """A folder whose store has four finished cells of the grid ``smoke``."""
    folder = tmp_path_factory.mktemp("docs")
    give_database(folder / "runs" / "mlflow" / "mlflow.db")
    words = ["grid", GRID, "--local", "--only", "method=zero_shot,linear_probe", "--limit", "4"]
    invoke(*words, "--store", folder / "runs")
    return folder


def test_the_report_is_made_from_code_as_its_page_says(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(code.replace('"demo"', repr(GRID)), found)
    assert found["page"] == Path("my-report/index.html")
    assert (store / "my-report" / "index.html").is_file()
    assert set(found["frame"]["method_name"]) <= {"zero_shot", "linear_probe"}


@pytest.mark.parametrize("words", readable())
def test_command_runs(words: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)
    shutil.rmtree("exports", ignore_errors=True)  # some commands write the same model
    results = sorted(path.stem for path in (store / "runs" / "results").glob("*.json"))
    cell = next(name for name in results if "linear_probe" in name)
    assert invoke(*shlex.split(words.replace("CELL", cell)))
