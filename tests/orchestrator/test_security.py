"""Security: what is never executed, and what hostile names can do.

Other tests cover what listens (``e2e/test_commands``, ``orchestrator/execution/test_cluster``), names that leave the
store (``orchestrator/store``, ``fuzz``), archives that leave their folder (``orchestrator/datasets/test_unpack``), and
pickles in checkpoints (``bolt/clip/test_checkpoints``) and in datasets (``orchestrator/datasets/test_routes``).
"""

import ast
import csv
import json
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.catalog import load_catalog
from orchestrator.catalog.yaml_files import parse_yaml
from orchestrator.datasets.images import read_images
from orchestrator.grid import load_grid
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.helpers.listening import listening
from tests.helpers.small_results import write

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for room in ("bolt", "orchestrator") for path in (ROOT / room).rglob("*.py"))
ALLOWED = {
    "orchestrator/catalog/yaml_files.py": {"yaml.load"},  # with a loader of its own, see below, and ruamel's round trip
}
"""Where something that can execute what it reads is called after all, and why that is no door."""


class Payload:
    """Pickles to a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of every call in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def option(call: ast.Call, name: str) -> Any:
    """The value of a keyword argument as it is written; ``None`` without it."""
    return next((ast.unparse(word.value) for word in call.keywords if word.arg == name), None)


def dangers(text: str) -> set[str]:
    """The calls in a module that can execute what they read, or hand a text to a shell."""
    found = set()
    for name, call in calls(ast.parse(text)):
        module, _, function = name.rpartition(".")
        last = module.rpartition(".")[2]
        if last in ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal") and function.startswith(
            ("load", "open", "Unpickler")
        ):
            found.add(f"{last}.{function}")
        if (last, function) == ("torch", "load") and option(call, "weights_only") != "True":
            found.add("torch.load")
        if option(call, "allow_pickle") not in (None, "False"):
            found.add(name)
        if last == "yaml" and function in ("load", "load_all", "unsafe_load", "full_load"):
            found.add(f"yaml.{function}")
        if name in ("eval", "exec", "__import__", "os.system", "os.popen", "tempfile.mktemp"):
            found.add(name)
        if option(call, "shell") not in (None, "False"):
            found.add(f"{name}(shell)")
    return found


def test_nothing_that_can_run_what_it_reads_is_called() -> None:
    found = {path.relative_to(ROOT).as_posix(): dangers(path.read_text()) for path in SOURCES}
    assert {path: calls for path, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize(
    "line",
    ["pickle.loads(x)", "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p, allow_pickle=True)",
     "yaml.load(x, Loader=y)", "subprocess.run(x, shell=True)", "ray.cloudpickle.load(f)", "joblib.load(f)", "eval(x)"],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert dangers(line)


@pytest.mark.parametrize(
    "text",
    ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!python/module:os", "!!python/tuple [1]",
     "!!python/object/new:type [x, [], {}]", "! x\nb: !<tag:yaml.org,2002:python/object:x.Y> {}"],
)  # fmt: skip
def test_yaml_builds_no_objects(text: str) -> None:
    with pytest.raises(UserError, match=r"tags that build objects are refused|not valid YAML"):
        parse_yaml(f"a: {text}", "x")


def test_an_array_of_an_artifact_that_is_a_pickle_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    np.save(tmp_path / "labels.npy", np.array([Payload(ran)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_images(lambda name: tmp_path / name)
    assert not ran.exists()
    np.load(tmp_path / "labels.npy", allow_pickle=True)
    assert ran.exists(), "the file would have run, had it been read so"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_of_a_backbone_that_are_a_pickle_are_not_run(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "weights.pt"
    tiny = load_catalog().backbones["tiny-clip"]
    entry = tiny.model_copy(update={"weights": tiny.weights.model_copy(update={"file": str(file)})})
    torch.save({"visual.proj": Payload(ran)}, file)
    with pytest.raises(UserError, match="pickled Python objects"):
        load_backbone(entry, "cpu")
    file.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(UserError, match=r"pickled Python objects|torch.save did not write"):
        load_backbone(entry, "cpu")
    assert not ran.exists()


def test_the_look_at_what_listens_sees_an_open_port() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        assert "0.0.0.0" in set().union(*listening(psutil.Process()).values())


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Alerts(HTMLParser):
    """Collects what a browser would run: handlers, and scripts that raise an alert."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.found += [f"{tag} {name}" for name, value in attrs if name.startswith("on") and "alert" in (value or "")]
        self.found += [f"{tag} {name}" for name, value in attrs if (value or "").startswith("javascript:")]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and "alert(" in data:
            self.found.append(f"script {data[:40]}")


def test_the_parser_finds_what_it_is_for() -> None:
    alerts = Alerts()
    alerts.feed(f'<a title="{HOSTILE}">')
    assert alerts.found == ["script alert(1)", "img onerror"]


def test_hostile_names_stay_text_in_the_report(tmp_path: Path) -> None:
    cells = [samples.cell(seed, method=method) for seed in (1, 2) for method in ("bolt", "lora")]
    results = [samples.result(cell, accuracy=62.5) for cell in cells]
    results = [replace(result, details={HOSTILE: HOSTILE}) for result in results]
    failed = samples.cell(9)
    said = {"name": HOSTILE, "title": HOSTILE, "description": HOSTILE, "planned": [*cells, failed]}
    failure = Failure(failed.id, HOSTILE, HOSTILE, HOSTILE, 1, "2026-01-01T00:00:00+00:00")
    names = {"label_of": lambda cell: f"{cell.method.name} {HOSTILE}", "names_of": lambda *_: (HOSTILE, HOSTILE)}
    page = write(tmp_path, results, failures=[failure], **said, **names).read_text()
    assert "alert(1)" in page
    alerts = Alerts()
    alerts.feed(page)
    assert alerts.found == []
    for figure in tmp_path.glob("figures/*.svg"):
        assert "<script" not in figure.read_text()


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "a\nb", "a\x1b[31m", "a\u202eb"])
def test_a_label_that_a_spreadsheet_would_run_or_a_terminal_would_obey_is_refused(tmp_path: Path, label: str) -> None:
    entry = {"bolt": {"as": label}}
    path = tmp_path / "mini.yaml"
    path.write_text(
        "title: x\nblocks: [{track: fewshot, backbones: [tiny-clip], datasets: [glyph-inks], shots: [1], seeds: [1], "
        f"methods: [{json.dumps(entry)}]}}]"
    )
    with pytest.raises(UserError, match=r"blocks\[0\]\.methods"):
        load_grid(path, load_catalog())


def test_every_cell_of_a_reports_csv_is_a_number_or_no_formula(tmp_path: Path) -> None:
    cells = [samples.cell(seed) for seed in (1, 2)]
    write(tmp_path, [samples.result(cell, accuracy=50.0 + cell.seed) for cell in cells])
    for path in (tmp_path / "rows.csv", *tmp_path.glob("tables/*.csv")):
        with path.open(newline="") as stream:
            for word in (word for row in csv.reader(stream) for word in row if word[:1] in tuple("=+-@")):
                float(word)


@pytest.mark.parametrize("name", ["-x", "--host", "-", "a b", "a;b", "$(x)", "a/b", "../x"])
def test_no_name_from_a_file_can_be_an_option_or_a_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f'datasets: {{"{name}": {{}}}}')
    with pytest.raises(UserError, match="may hold lower-case letters"):
        load_catalog([path])
