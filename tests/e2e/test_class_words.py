"""The run and its report name the datasets that have class words which the tiny CLIP cannot tell apart."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bolt.seeds import numpy_generator
from orchestrator.catalog import load_catalog
from orchestrator.cli.workspace import open_workspace
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers.command import invoke

WORDS = {
    "animals": ("cat", "dog", "horse", "sheep"),
    "vehicles": ("airplane", "truck", "bus", "tram"),
    "mixed": ("cat", "dog", "red", "blue"),
    "digits": ("one", "two", "three", "four"),
    "colours": ("red", "green", "blue", "yellow"),
}
DISTINCT = {"animals": 1, "vehicles": 1, "mixed": 3, "digits": 4, "colours": 4}
GRID = """
title: Five datasets
fine_tuning: {epochs: 1, batch_size: 8, learning_rate: 5.0e-4, warmup_steps: 1}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    domains: [own]
    sources: leave_one_out
    shots: [1]
    seeds: [1]
    methods: [zero_shot, tip_adapter, bolt_pooled]
"""


def _write_images(root: Path) -> None:
    """Write 5 images to learn from and 2 test images of each class: noise around the brightness of the class."""
    for dataset, words in WORDS.items():
        for label, word in enumerate(words):
            for part, count in (("train", 5), ("test", 2)):
                folder = root / dataset / part / word
                folder.mkdir(parents=True)
                for number in range(count):
                    draw = numpy_generator("class words", dataset, word, part, number)
                    pixels = np.clip(draw.normal(40 + 50 * label, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number}.png")


def _run(*words: str) -> str:
    """Run a command that ends with exit code 0; return its output on one line."""
    return " ".join(invoke(*words).split())


@pytest.fixture
def folder(tmp_path: Path, give_database: GiveDatabase, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the images in ``data`` and a store that has an empty MLflow database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    _write_images(tmp_path / "data")
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    return tmp_path


def test_words_that_the_tower_cannot_tell_apart_are_named_by_the_run_and_the_report(folder: Path) -> None:
    limited = [name for name, distinct in DISTINCT.items() if distinct < 4]
    for name in DISTINCT:
        _run("data", "add", f"data/{name}", "--catalog", "mine.yaml")
    (folder / "five.yaml").write_text(GRID)
    where = ["five.yaml", "--catalog", "mine.yaml", "--data-root", "data"]
    log = _run("grid", *where, "--local")
    (named,) = re.findall(r"equal text vectors in (.*?);", log)
    assert set(re.split(", | and ", named)) == set(limited)
    report = folder / "runs" / "reports" / "five"
    page = (report / "index.html").read_text()
    assert all(f"{name}: {DISTINCT[name]} distinct vector" in page for name in limited)
    assert "colours: 4 distinct" not in page
    (limits, *_) = [record["text_limits"] for record in json.loads((report / "verdict.json").read_text())]
    assert {limit["dataset"]: limit["distinct"] for limit in limits} == {"animals": 1, "vehicles": 1, "mixed": 3}
    sources = (report / "tables" / "sources.csv").read_text().splitlines()
    assert ",no gain,25,25,0," in next(line for line in sources if line.startswith("animals"))
    for path in (folder / "runs" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        dataset, score = result["cell"]["dataset"]["name"], result["evaluations"][0]
        if result["cell"]["method"]["name"] != "tip_adapter" and dataset in limited:
            assert score["correct"] / score["total"] <= DISTINCT[dataset] / 4
    _check_sources_without_gain(folder, [*where, "--only", "dataset=digits"])


@pytest.mark.usefixtures("folder")
def test_a_text_that_is_too_long_for_the_text_tower_is_named() -> None:
    """Regression: the words after the context length were dropped without a word."""
    templates = [text for template in ("a photo of a {}.", "a {}" + " word" * 40) for text in ("--template", template)]
    _run("data", "add", "data/colours", "--catalog", "mine.yaml", *templates)
    only = ["--only", "method=zero_shot", "--set", "shots=[1]"]
    log = _run("grid", "colours.yaml", "--catalog", "mine.yaml", "--data-root", "data", "--local", *only)
    assert "colours: tiny-clip does not read the end of 4 long texts" in log
    assert "'a red word" in log or "'a blue word" in log


def _check_sources_without_gain(folder: Path, where: list[str]) -> None:
    """Check that ``min_gain`` needs measured source models, and leaves out models that gain less on their own task."""
    least = ["--set", "sources={rule: leave_one_out, min_gain: 0.1}"]
    with pytest.raises(UserError, match="min_gain") as refused:
        _run("plan", *where, *least, "--store", "empty")
    assert "vehicles" in str(refused.value)
    gains = {}
    for path in (folder / "runs" / "sources").rglob("manifest.json"):
        meta = json.loads(path.read_text())["meta"]
        gains[meta["dataset"]] = meta["accuracy_fine_tuned"] - meta["accuracy_zero_shot"]
    assert gains["animals"] == 0, "every image is taken for one class, before and after"
    catalog = load_catalog([folder / "mine.yaml"])
    settings = RunSettings("runs", str(folder / "data"), catalog_files=(str(folder / "mine.yaml"),))
    grid = open_workspace("five.yaml", settings, only=where[-1:])
    assert {source.dataset for cell in grid.grid.cells for source in cell.sources} == set(WORDS) - {"digits"}
    kept = {name for name, gain in gains.items() if gain >= -0.1 and name != "digits"}
    chosen = load_grid(
        "five.yaml", catalog, only=where[-1:], set_=["sources={rule: leave_one_out, min_gain: -0.1}"],
        data_root=folder / "data", gain_of=lambda backbone, source: gains[source.dataset],
    )  # fmt: skip
    assert {source.dataset for cell in chosen.cells for source in cell.sources} == kept
