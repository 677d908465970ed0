"""The field's benchmark in miniature: killed and continued, and under protocols that give validation images."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bolt.task.support import draw_as_published
from orchestrator.catalog import load_catalog
from orchestrator.datasets.opening import open_dataset
from tests.conftest import GiveDatabase
from tests.helpers.warm_process import kill_forked_when, run_forked
from tools import eleven_mini


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    eleven_mini.make(root)
    return root


@pytest.fixture
def store(tmp_path: Path, give_database: GiveDatabase) -> Path:
    give_database(tmp_path / "mlflow" / "mlflow.db")
    return tmp_path


def run(data: Path, store: Path, *more: str, code: int = 0) -> str:
    """Run the grid; return its output and its errors."""
    done = run_forked(command(data, store, *more))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(data: Path, store: Path, *more: str) -> list[str]:
    return ["grid", "eleven-mini", "--local", "--data-root", str(data), "--store", str(store), *more]


def results(store: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (store / "results").glob("*.json")}


@pytest.mark.slow
def test_all_tracks_run_and_a_killed_run_is_continued(data: Path, store: Path) -> None:
    one_source = "sources={rule: leave_one_out, datasets: [eleven_dtd, eleven_eurosat]}"  # not nine
    methods = "method=zero_shot,tip_adapter,bolt_pooled,maple,tent,trans_clip,tda,zero"
    only = ("--only", "dataset=eleven_dtd,eleven_imagenet", "--only", methods, "--set", one_source)
    assert kill_forked_when(command(data, store, *only), lambda: len(results(store)) >= 4)
    before = results(store)
    said = run(data, store, *only)
    assert "classes or images differ from the catalog: eleven_caltech101 (classes: catalog 100, data 4" in said
    after = results(store)
    assert len(before) < len(after)
    assert {name: after[name] for name in before} == before, "what was finished is not measured again"
    tracks = {"fewshot", "base_to_new", "cross_dataset", "ood", "tta", "tta_stream", "tta_image"}
    assert {name.partition(".")[0] for name in after} == tracks
    assert (store / "reports" / "eleven-mini" / "index.html").is_file()


@pytest.mark.slow
def test_methods_choose_on_validation_images_where_the_protocol_says_so(data: Path, store: Path) -> None:
    only = ["--only", "track=fewshot", "--only", "dataset=eleven_dtd", "--only", "method=tip_adapter"]
    chosen: dict[str, set[str]] = {}
    for protocol in ("tip_adapter", "lp_plus_plus", "dassl"):
        run(data, store, "--set", f"protocol={protocol}", *only)
    for result in results(store).values():
        chosen.setdefault(result["cell"]["protocol"]["name"], set()).add(result["details"]["search"])
    assert chosen["tip_adapter"] == chosen["lp_plus_plus"] == {"validation images"}
    assert not any("validation" in text for text in chosen["dassl"])


@pytest.mark.slow
def test_a_listed_draw_gives_the_cells_of_the_draw_that_it_lists(data: Path, store: Path) -> None:
    raw = open_dataset(load_catalog().dataset("eleven_dtd"), data)
    for k in (1, 2):
        chosen = draw_as_published({"train": raw.train.labels, "val": []}, k, seed=1, code="dassl")["train"]
        rows = [{"_impath": f"/lab/{raw.train.origin(i)}", "_label": int(raw.train.labels[i])} for i in chosen]
        path = data / "dtd" / "split_fewshot" / f"shot_{k}-seed_1_train.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    only = ["--only", "track=fewshot", "--only", "dataset=eleven_dtd", "--only", "method=tip_adapter,lora"]
    for draw in ("dassl", "listed"):
        run(data, store, "--set", f"protocol.support_draw={draw}", *only)
    scores: dict[str, set[object]] = {}
    for result in results(store).values():
        cell = result["cell"]
        assert ("listed" in cell) == (cell["protocol"]["support_draw"] == "listed")
        scores.setdefault(f"{cell['method']['name']} {cell['shots']}", set()).add(result["evaluations"][0]["correct"])
    assert [len(found) for found in scores.values()] == [1] * 4
    said = run(data, store, "--set", "protocol.support_draw=listed", *only[:2], code=2)
    assert re.search(r"neither shot_\d-seed_1\.pkl", said)


def test_a_dataset_without_a_validation_part_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    said = run(data, tmp_path, "--set", "protocol=tip_adapter", "--only", "track=ood", code=2)
    assert "eleven_imagenet" in said
    assert "validation: none" in said
    assert not list((tmp_path / "results").glob("*"))
