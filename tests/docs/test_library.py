"""The Python of the README and of docs/using-a-model.md runs, with the tiny CLIP in place of published weights."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import bolt

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "grids" / "backbones" / "tiny-clip"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that the code reads, in the current folder: two source models, and two classes of four images."""
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
