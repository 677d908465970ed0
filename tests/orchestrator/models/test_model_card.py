"""The model card of an exported model: what the hub reads, what a person reads, and code that runs as it stands."""

import re
from pathlib import Path
from typing import cast

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from bolt.model.saving import VISUAL, Form
from orchestrator.catalog import DatasetEntry
from orchestrator.models.export import example_image, restore_model, save_model
from orchestrator.models.model_card import CARD
from orchestrator.store.results import Evaluation, Result
from tests.orchestrator.conftest import World
from tests.orchestrator.models.test_export import finished


def exported(world: World, result: Result, folder: Path, form: Form) -> str:
    """Return the model card of a cell's model, saved in a form."""
    save_model(restore_model(result, world.loaded), result, world.loaded, folder, form)
    return (folder / CARD).read_text()


def code(card: str) -> str:
    (found,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    return str(found)


def test_the_front_matter_is_read_by_the_hubs_library(world: World, tmp_path: Path) -> None:
    result = finished(world, "linear_probe")
    exported(world, result, tmp_path / "model", "adapter")
    data = ModelCard.load(tmp_path / "model" / CARD).data
    assert data.eval_results is not None
    (score,) = data.eval_results
    assert score.metric_value == round(result.evaluations[0].accuracy, 2)
    assert (score.dataset_name, score.metric_type) == (result.cell.dataset.name, "accuracy")
    assert data.library_name == "bolt"
    assert data.license == "other"
    assert {"clip", "linear_probe"} <= set(data.tags or ())


def test_the_text_has_the_accuracy_the_data_and_the_settings(world: World, tmp_path: Path) -> None:
    result = finished(world, "bolt")
    card = exported(world, result, tmp_path / "model", "adapter")
    (scored,) = result.evaluations
    low, high = scored.interval
    entry = world.catalog.dataset(result.cell.dataset.name)
    shown = [f"{scored.accuracy:.2f} %", f"{low:.2f} % to {high:.2f} %", f"{scored.accuracy_zero_shot:.2f} %"]
    for text in (*shown, result.cell.id, entry.licence, entry.title, result.manifest.versions["torch"]):
        assert text in card
    for name, _ in result.cell.method.settings:
        assert f"`{name}`" in card
    for source in result.cell.sources:
        assert f"- {source.dataset}:" in card
    assert "load_sources" in code(card)  # coefficients without their basis need the source models
    assert world.catalog.backbone("tiny-clip").architecture in code(card)


@pytest.mark.parametrize(("method", "library"), [("maple", "bolt"), ("lora", "open_clip")])
def test_only_bolt_loads_a_tower_with_learned_tokens(method: str, library: str, world: World, tmp_path: Path) -> None:
    """The card of a ``state_dict`` named open_clip, whose towers have no place for the tokens."""
    card = exported(world, finished(world, method), tmp_path / "model", "state_dict")
    assert ("learned tokens" in card) == ("prompts" in load_file(tmp_path / "model" / VISUAL))
    assert ModelCard.load(tmp_path / "model" / CARD).data.library_name == library


@pytest.mark.parametrize("form", ["state_dict", "huggingface"])
def test_the_code_runs(
    form: Form, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finished(world, "bolt")
    card = exported(world, result, tmp_path / "model", form)
    (tmp_path / "model" / "photo.jpg").write_bytes(example_image(result, world.loaded))
    monkeypatch.chdir(tmp_path / "model")
    exec(code(card), {})
    label, _, score = capsys.readouterr().out.strip().rpartition(" ")
    assert label
    assert 0 < float(score) <= 1


def test_the_interval_is_wilsons() -> None:
    scored = Evaluation("a", 50.0, 50, 100, 50.0, ((50, 100),), None, None)
    assert scored.interval == pytest.approx((40.383, 59.617), abs=1e-3)
    low, high = Evaluation("a", 100.0, 20, 20, 50.0, ((20, 20),), None, None).interval
    assert (round(low, 1), high) == (83.9, 100.0)


def test_a_title_is_no_markup(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished(world, "linear_probe")
    name = result.cell.dataset.name
    entry = world.loaded.catalog.dataset(name).model_copy(update={"title": "<script>alert(1)</script>"})
    monkeypatch.setitem(cast("dict[str, DatasetEntry]", world.loaded.catalog.datasets), name, entry)
    card = exported(world, result, tmp_path / "model", "adapter")
    assert "<script" not in card
    assert "&lt;script>alert(1)" in card
    assert ModelCard.load(tmp_path / "model" / CARD).data.license == "other"
