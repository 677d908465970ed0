"""Commands that only read do not import PyTorch, MLflow or Ray: importing PyTorch alone takes two seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.artifacts.source_model import SourceModel
from orchestrator.catalog import backbone_ref, dataset_ref, load_catalog
from orchestrator.core.recipes import SourceRecipe
from orchestrator.store import Store
from tests.helpers.waiting import TIMEOUT

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("--help", "--version", "status", "data list", "backbones list", "sources list", "status demo --watch")
SCRIPT = """
import sys
from contextlib import suppress
from orchestrator.__main__ import main
commands = sys.argv[1:]
for words in commands:
    sys.argv[1:] = words.split()
    with suppress(SystemExit):
        main()
    heavy = {"torch", "torchvision", "open_clip", "ray", "mlflow", "matplotlib"} & set(sys.modules)
    print(f"{words} imports", *sorted(heavy), file=sys.stderr)
"""


def run(store: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run command lines in one process; a line of its standard error names the heavy packages of each."""
    command = [sys.executable, "-c", SCRIPT, *commands]
    environment = {**os.environ, "BOLT_STORE": str(store)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, env=environment)


def test_a_command_that_reads_imports_nothing_heavy(tmp_path: Path) -> None:
    done = run(tmp_path, *COMMANDS)
    assert [line for line in done.stderr.splitlines() if " imports" in line] == [f"{each} imports" for each in COMMANDS]
    assert f"\n{orchestrator.__version__}\n" in done.stdout


USES_ADAPTERS = """
import torch; from torch import nn; from bolt.methods.common.adapters import *
layers = nn.Sequential(nn.Linear(4, 4)); attach_adapters(layers, ["0"], AdapterSettings(rank=1), True)
merged_weight(layers[0]); layers(torch.zeros(1, 4))
"""
TRAINS = """
from bolt.training.loop import TrainingRecipe, fit
weight, rows = torch.zeros(1, requires_grad=True), torch.arange(4)
fit([weight], lambda epoch, rows: ((weight - rows) ** 2).mean(), lambda epoch: rows, TrainingRecipe(epochs=1))
assert weight
"""
LEFT_OUT = {
    "the library": (
        ("import bolt; dir(bolt)", "torch numpy PIL open_clip ray mlflow orchestrator"),
        ("bolt.adapt, bolt.METHODS, bolt.load_model", "ray mlflow orchestrator open_clip peft sklearn"),
        (USES_ADAPTERS, "peft transformers"),  # these would take each worker 2.4 seconds and 240 MiB
        (TRAINS, "torch._dynamo"),  # 1.1 seconds and 150 MiB
    ),
    "the engine": (
        ("import orchestrator.drawn_world.tasks", "torch matplotlib"),
        ("import orchestrator.report.registry, matplotlib.figure", "torch scipy.stats pandas"),
    ),
}
"""Statements that one process runs in this order -> the packages that are not imported after each."""


@pytest.mark.parametrize("part", LEFT_OUT)
def test_what_a_part_does_not_need_is_not_imported(part: str) -> None:
    check = "found = set({absent}) & set(sys.modules); assert not found, found"
    lines = [f"{run}\n{check.format(absent=absent.split())}" for run, absent in LEFT_OUT[part]]
    command = [sys.executable, "-c", "\n".join(["import sys", *lines])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr


def test_source_models_are_listed_without_importing_anything_heavy(tmp_path: Path) -> None:
    """Their accuracy is read from files."""
    catalog, store = load_catalog(), Store(tmp_path)
    entry = catalog.backbone("tiny-clip")
    backbone, dataset = backbone_ref(entry), dataset_ref(catalog.dataset("glyph-inks"), None)
    model = SourceModel(backbone, dataset, entry.input_size, SourceRecipe(epochs=7), "0" * 8)
    with store.building(model.address, model.identity) as built:
        built.meta.update(accuracy_fine_tuned=81.25, accuracy_zero_shot=61.0)
    done = run(tmp_path, "sources list --backbone tiny-clip")
    assert done.stderr.endswith("sources list --backbone tiny-clip imports\n")
    for fact in ("glyph-inks", "epochs 7", "+20.25"):
        assert fact in done.stdout


def test_a_process_that_has_loaded_triton_ends_silently() -> None:
    """Triton's binding prints a page about leaks if the last collections of garbage are left out."""
    script = "import sys, torch._dynamo; from orchestrator.__main__ import main; sys.argv[1:] = ['--version']; main()"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{orchestrator.__version__}\n", "")
