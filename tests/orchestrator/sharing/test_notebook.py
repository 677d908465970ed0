"""The notebook of ``examples/`` runs from top to bottom on a store with results, and draws its figure."""

import json
from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from orchestrator.store import Store
from tests.orchestrator.sharing.conftest import Stores

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "own_figure.ipynb"


def test_the_notebook_draws_its_figure(
    stores: Stores,
    whole: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BOLT_STORE", whole.url)
    monkeypatch.setenv("BOLT_GRID", str(stores.grid_file))
    monkeypatch.setenv("BOLT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with mpl.rc_context({"backend": "agg"}):
        for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"own_figure.ipynb[{number}]", "exec"), names)
                assert cell["outputs"] == []
    with Image.open(tmp_path / "own_figure.png") as figure:
        assert figure.width > 500
    said = capsys.readouterr().out
    assert "k = 1: " in said
    assert "test images" in said
