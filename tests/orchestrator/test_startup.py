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


def test_source_models_are_listed_without_importing_anything_heavy(tmp_path: Path) -> None:
    """Their accuracy is read from files."""
    catalog, store = load_catalog(), Store(tmp_path)
    entry = catalog.backbone("tiny-clip")
    backbone, dataset = backbone_ref(entry), dataset_ref(catalog.dataset("glyph-inks"), None)
    model = SourceModel(backbone, dataset, entry.input_size, SourceRecipe(epochs=7), "0" * 8)
    with store.building(model.address, model.identity) as built:
        built.meta.update(accuracy_fine_tuned=81.25, accuracy_zero_shot=61.0)
    done = run(tmp_path, "sources list --backbone tiny-clip")
    assert done.stderr.splitlines()[-1] == ""
    for fact in ("glyph-inks", "7 epochs", "+20.25"):
        assert fact in done.stdout


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"{orchestrator.__version__}\n"


def test_a_process_that_has_loaded_triton_ends_silently() -> None:
    """Triton's binding prints a page about leaks if the last collections of garbage are left out."""
    script = "import sys, torch._dynamo; from orchestrator.__main__ import main; sys.argv[1:] = ['--version']; main()"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{orchestrator.__version__}\n", "")
