"""From a folder of photographs to results, with the commands of docs/own-data.md."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.datasets.photographs import break_file, write_photographs
from tests.e2e import command


def test_a_folder_of_photographs_becomes_results(tmp_path: Path) -> None:
    folder, store = tmp_path / "ware", tmp_path / "runs"
    write_photographs(folder, 10)
    break_file(folder / "BlueBottle" / "007.jpg")
    mine = str(tmp_path / "mine.yaml")
    refused = command.orchestrator("data", "add", str(folder), "--catalog", mine)
    assert refused.returncode == 2
    assert "BlueBottle/007.jpg" in refused.stderr
    added = command.orchestrator("data", "add", str(folder), "--catalog", mine, "--exclude-broken")
    assert added.returncode == 0, added.stderr
    printed = next(line for line in added.stdout.splitlines() if " grid own " in line)
    words = shlex.split(printed)[3:]  # as printed, after `python -m orchestrator`
    small = ["--set", "shots=[1,4]", "--set", "seeds=[1]", "--set", "linear_probe.epochs=2"]
    only = ["--only", "method=zero_shot,tip_adapter,linear_probe"]
    done = command.orchestrator(*words, *small, *only, "--store", str(store), "--local", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in (store / "results").glob("*.json")]
    assert len(results) == 1 + 2 * 2
    assert {result["cell"]["dataset"]["name"] for result in results} == {"ware"}
    metas = [json.loads(path.read_text()) for path in store.rglob("manifest.json")]
    assert 1 in [meta.get("meta", {}).get("excluded") for meta in metas]
