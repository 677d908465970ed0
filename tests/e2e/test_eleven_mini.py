"""The field's benchmark in miniature: killed and continued, and under protocols that give validation images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.warm_process import kill_forked_when, run_forked
from tools import eleven_mini


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    eleven_mini.make(root)
    return root


def command(data: Path, store: Path, *more: str) -> list[str]:
    return ["grid", "eleven-mini", "--local", "--data-root", str(data), "--store", str(store), *more]


def results(store: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (store / "results").glob("*.json")}


@pytest.mark.slow
def test_all_tracks_run_and_a_killed_run_is_continued(data: Path, tmp_path: Path) -> None:
    words = command(data, tmp_path, "--only", "dataset=eleven_dtd,eleven_imagenet")
    assert kill_forked_when(words, lambda: len(results(tmp_path)) >= 4)
    before = results(tmp_path)
    done = run_forked(words)
    assert done.returncode == 0, done.stdout + done.stderr
    after = results(tmp_path)
    assert len(before) < len(after)
    assert {name: after[name] for name in before} == before, "what was finished is not measured again"
    assert {name.partition(".")[0] for name in after} == {"fewshot", "base_to_new", "cross_dataset", "ood", "tta"}
    assert (tmp_path / "reports" / "eleven-mini" / "index.html").is_file()


@pytest.mark.slow
def test_methods_choose_on_validation_images_where_the_protocol_says_so(data: Path, tmp_path: Path) -> None:
    only = ["--only", "track=fewshot", "--only", "dataset=eleven_dtd", "--only", "method=tip_adapter"]
    chosen: dict[str, set[str]] = {}
    for protocol in ("tip_adapter", "lp_plus_plus", "dassl"):
        done = run_forked(command(data, tmp_path, "--set", f"protocol={protocol}", *only))
        assert done.returncode == 0, done.stdout + done.stderr
    for result in results(tmp_path).values():
        chosen.setdefault(result["cell"]["protocol"]["name"], set()).add(result["details"]["search"])
    assert chosen["tip_adapter"] == chosen["lp_plus_plus"] == {"validation images"}
    assert not any("validation" in text for text in chosen["dassl"])


def test_a_dataset_without_a_validation_part_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    done = run_forked(command(data, tmp_path, "--set", "protocol=tip_adapter", "--only", "track=ood"))
    assert done.returncode == 2
    assert "eleven_imagenet" in done.stderr
    assert "validation: none" in done.stderr
    assert not list((tmp_path / "results").glob("*"))
