"""Pages of the documentation: their limits, and the code of the page of the library."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import bolt
from bolt.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_at_most_100_characters_a_line(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("sh", "bash") or block.startswith(("python ", "make ", "ray ")):
            lines = [re.split(r"\s+#", line)[0] for line in block.splitlines()]
            assert [line for line in lines if len(line) > 100] == []


def test_every_field_of_grid_and_catalog_files_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS / "tools"), *sys.path])
    page = runpy.run_path(str(DOCS / "tools" / "grid_files.py"))["page"]()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ?(.*?) ?\|$", page, re.MULTILINE)
    assert len(rows) > 80
    assert [name for name, meaning in rows if not meaning] == []


def test_every_public_name_of_bolt_is_on_the_page_of_the_library() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert [name for name in bolt.__all__ if not re.search(rf"\.{name}\b", page)] == []


def test_every_grid_of_the_project_is_on_the_page_of_grids() -> None:
    page = (DOCS / "grids.md").read_text(encoding="utf-8")
    table = page.split("## The project's grids")[1]
    grids = {path.stem for path in (ROOT / "grids").glob("*.yaml")} - {"prompts"}
    assert grids - set(re.findall(r"`([\w-]+)`", table)) == set()


TINY = ROOT / "grids" / "backbones" / "tiny-clip"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the folders that the code reads into the current folder: two source models, two classes of four images."""
    monkeypatch.chdir(tmp_path)
    backbone = bolt.load_backbone(TINY.with_suffix(".json"), TINY.with_suffix(".safetensors"), quick_gelu=False)
    (tmp_path / "checkpoints").mkdir()
    generator = torch.Generator().manual_seed(1)
    for name in ("letters", "signs"):
        tower = backbone.tower.state_dict_open_clip()
        moved = {key: value + 0.01 * torch.randn(value.shape, generator=generator) for key, value in tower.items()}
        save_file(moved, tmp_path / "checkpoints" / f"{name}.safetensors")
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        folder = tmp_path / "my-images" / name
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (40 + number, 40), colour).save(folder / f"{number}.png")


@pytest.mark.parametrize("page", ["README.md", "docs/using-a-model.md"])
def test_code_of_the_page_adapts_predicts_saves_and_loads(page: str, inputs: None) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    code = next(
        block for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "adapt" in block
    )
    weights = '"ViT-B-32", "openai"'
    assert weights in code
    names: dict[str, Any] = {}
    exec(code.replace(weights, f'"{TINY}.json", "{TINY}.safetensors", quick_gelu=False'), names)
    assert names["names"] == ["blue", "red"]
    assert {prediction.label for prediction in names["model"].predict(names["images"])} <= {"blue", "red"}
    assert Path("my-model/bolt.json").is_file()


def test_every_method_is_on_the_page_of_methods() -> None:
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"| `{name}` |" not in page] == []
