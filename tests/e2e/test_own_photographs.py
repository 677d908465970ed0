"""The commands of docs/own-data.md turn a folder of photographs into results and a model that predicts."""

import json
import shlex
from pathlib import Path

import pytest

import bolt
from tests.conftest import GiveDatabase
from tests.helpers import command
from tests.helpers.photographs import break_file, write_photographs
from tests.helpers.waiting import TIMEOUT

WORDS = {"red_mug": "red mug", "BlueBottle": "blue bottle", "03-green-plate": "green plate"}


def test_images_become_a_model(tmp_path: Path, give_database: GiveDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # `data add` writes bolt.yaml there
    folder, store = tmp_path / "ware", tmp_path / "runs"
    give_database(store / "mlflow" / "mlflow.db")
    write_photographs(folder, 10)
    break_file(folder / "BlueBottle" / "007.jpg")
    mine = str(tmp_path / "mine.yaml")
    refused = command.orchestrator("data", "add", str(folder), "--catalog", mine)
    assert refused.returncode == 2
    assert "BlueBottle/007.jpg" in refused.stderr
    added = command.invoke("data", "add", folder, "--catalog", mine, "--exclude-broken")
    printed = next(line for line in added.splitlines() if " grid " in line)
    words = shlex.split(printed)[3:]  # as printed, after `python -m orchestrator`
    small = ["--set", "shots=[1,4]", "--set", "seeds=[1]", "--set", "linear_probe.epochs=2"]
    only = ["--only", "method=zero_shot,tip_adapter,linear_probe"]
    done = command.orchestrator(*words, *small, *only, "--store", str(store), "--local", timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = {path.stem: json.loads(path.read_text())["cell"] for path in (store / "results").glob("*.json")}
    assert len(cells) == 1 + 2 * 2
    assert {cell["dataset"]["name"] for cell in cells.values()} == {"ware"}
    metas = [json.loads(path.read_text()) for path in store.rglob("manifest.json")]
    assert 1 in [meta.get("meta", {}).get("excluded") for meta in metas]
    (cell,) = (name for name, one in cells.items() if (one["method"]["name"], one["shots"]) == ("tip_adapter", 4))
    where = ["--catalog", mine, "--data-root", str(tmp_path), "--store", str(store)]
    command.invoke("export", cell, "--as", "state_dict", "-o", tmp_path / "model", *where)
    model = bolt.load_model(tmp_path / "model")
    photographs = [path for path in sorted(folder.rglob("*.jpg")) if path.name != "007.jpg"]
    found = model.predict(photographs)
    right = [WORDS[path.parent.name] == one.label for path, one in zip(photographs, found, strict=True)]
    assert sum(right) > 0.6 * len(photographs)
