"""Exporting finished cells as models: restored, compared with the result, read back, registered and served."""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import bolt
from bolt.clip.input_size import InputSize
from bolt.methods import METHODS
from bolt.model.loading import load_model
from bolt.model.saving import FORMS
from orchestrator.artifacts.images import Images
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.measure import KEPT_BYTES, adapter_to_keep, measure
from orchestrator.cells.trial import run_and_record
from orchestrator.models.export import example_image, restore_model, save_model
from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.model_registry import register_model
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import Tracker
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers.command import invoke
from tests.helpers.waiting import TIMEOUT
from tests.orchestrator.conftest import World

KEPT = ["zero_shot", "linear_probe", "tip_adapter", "lp_plus_plus", "maple", "promptsrc", "bolt_pooled", "bolt"]
AGAIN = ["full_finetune", "lora", "atlas", "task_arithmetic"]
"""Methods whose adapters are too large to be stored with the result."""


def finished(world: World, method: str, track: str = "fewshot") -> Result:
    cell = world.pick(method, track)
    store = Store(world.settings.store_url)
    if cell.id not in store.result_ids():
        assert run_and_record(cell, world.settings).kind == "finished"
    return store.read_result(cell.id)


@pytest.mark.parametrize("method", KEPT + AGAIN)
def test_only_small_adapters_are_stored_with_the_result(method: str, world: World) -> None:
    files = sorted(Path(world.settings.store_url, "adapters", finished(world, method).cell.id).glob("*"))
    assert [path.name for path in files] == (["adapter.safetensors", "bolt.json"] if method in KEPT else [])
    assert all(path.stat().st_size <= KEPT_BYTES for path in files)


def test_the_adapter_is_stored_before_the_result(world: World, tmp_path: Path) -> None:
    """Every result has its adapter: if storing the adapter fails, no result is written."""
    (tmp_path / "store").mkdir()
    for folder in Path(world.settings.store_url).iterdir():
        if folder.name not in ("results", "adapters", "failures"):
            (tmp_path / "store" / folder.name).symlink_to(folder)
    (tmp_path / "store" / "adapters").write_text("a file where a folder should be")
    cell = world.pick("zero_shot")
    outcome = run_and_record(cell, replace(world.settings, store_url=str(tmp_path / "store")))
    assert (outcome.kind, outcome.problem) == ("failed", "store")
    assert not (tmp_path / "store" / "results").exists()


def test_equal_cells_have_equal_adapters(world: World) -> None:
    result = finished(world, "bolt")
    first, second = (adapter_to_keep(measure(result.cell, world.loaded), world.loaded) for _ in range(2))
    assert first is not None
    assert first == second
    kept = Path(world.settings.store_url, "adapters", result.cell.id)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == first


WITH_TOKENS = ["maple", "promptsrc"]
CELLS = [("bolt", "fewshot"), ("tip_adapter", "fewshot"), ("lora", "fewshot"), ("bolt", "tta"), ("meta_init", "meta")]


@pytest.mark.parametrize(("method", "track"), [*CELLS, *((method, "fewshot") for method in WITH_TOKENS)])
def test_an_exported_model_is_the_measured_one(method: str, track: str, world: World, tmp_path: Path) -> None:
    result = finished(world, method, track)
    made = restore_model(result, world.loaded)
    assert made.how == ("kept" if method in KEPT else "again")
    assert made.accuracy == result.accuracies[0]
    assert made.warnings == ()
    backbone = world.loaded.backbone(result.cell.backbone)
    sources = CellInputs(result.cell, world.loaded).sources if METHODS[method].uses_sources else None
    images = world.loaded.get(Images(result.cell.dataset, "test", backbone.input_size))
    ((recorded,),) = Store(world.settings.store_url).read_predictions([result]).values()
    for form in FORMS if (method, track) == ("bolt", "fewshot") else ("adapter",):
        difference = save_model(made, result, world.loaded, tmp_path / form, form)
        assert difference <= (1e-4 if form == "huggingface" else 0)
        notes = json.loads((tmp_path / form / "bolt.json").read_text())["about"]["notes"]
        assert (notes["cell"], notes["accuracy"]) == (result.cell.id, result.accuracies[0])
        assert "drawn by this project" in notes["data_licence"]
        assert notes["sources"] == {source.dataset: source.digest for source in result.cell.sources}
        # What counts: the model alone, on the cell's own test images, classifies as many as the result says.
        again = load_model(tmp_path / form, *((backbone, sources) if form == "adapter" else ()))
        predicted = again.logits(images.batch(0, len(images))).argmax(dim=-1).numpy()
        assert int((predicted == images.labels).sum()) == result.evaluations[0].correct
        assert form == "huggingface" or (predicted == recorded.predicted).all()


@pytest.mark.parametrize("moment", ["bolt.model.saving.os.replace", "orchestrator.models.export.write_card"])
def test_an_export_that_is_killed_before_its_end_leaves_no_folder(
    moment: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was there before its card, and the same command refused to continue; hidden files stayed for good."""
    result = finished(world, "linear_probe")
    made = restore_model(result, world.loaded)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(moment, killed)
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(KeyboardInterrupt):
            save_model(made, result, world.loaded, tmp_path / "model", "adapter")
    assert not (tmp_path / "model").exists()
    save_model(made, result, world.loaded, tmp_path / "model", "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_cell_with_a_damaged_adapter_is_run_again(world: World, tmp_path: Path) -> None:
    result = finished(world, "linear_probe")
    kept = Path(world.settings.store_url, "adapters", result.cell.id)
    shutil.copytree(kept, tmp_path / "aside")
    try:
        (kept / "adapter.safetensors").write_bytes(b"short")
        assert restore_model(result, world.loaded).how == "again"
        shutil.rmtree(kept)
        assert restore_model(result, world.loaded).how == "again"
    finally:
        shutil.copytree(tmp_path / "aside", kept, dirs_exist_ok=True)


def test_a_different_score_is_an_error_unless_the_machine_differs(world: World) -> None:
    result = finished(world, "zero_shot")
    (scored,) = result.evaluations
    claimed = replace(result, evaluations=(replace(scored, correct=scored.correct - 3),))
    with pytest.raises(UserError, match=f"{scored.correct} of {scored.total} images correct, but"):
        restore_model(claimed, world.loaded)
    elsewhere = replace(claimed, manifest=replace(result.manifest, device="another GPU"))
    (warning,) = restore_model(elsewhere, world.loaded).warnings
    assert "device another GPU then" in warning


@pytest.mark.parametrize(("method", "track"), [("tda", "tta_stream"), ("zero", "tta_image")])
def test_predictions_that_no_classifier_repeats_are_no_model(method: str, track: str, world: World) -> None:
    """Regression: the error said that the store or the code had changed."""
    with pytest.raises(UserError, match="so no model has this accuracy"):
        restore_model(finished(world, method, track), world.loaded)


def test_a_dataset_in_no_catalog_is_an_error(world: World) -> None:
    result = finished(world, "zero_shot")
    mine = replace(result.cell, dataset=replace(result.cell.dataset, name="my-birds"))
    with pytest.raises(UserError, match=r"my-birds is in no catalog file\n.*--catalog"):
        restore_model(replace(result, cell=mine), world.loaded)


def test_the_output_of_the_command(world: World, tmp_path: Path) -> None:
    result = finished(world, "bolt")
    store = ("--store", world.settings.store_url, "--device", "cpu")
    said = invoke("export", result.cell.id[:-4], "--with-basis", "-o", tmp_path / "model", *store)
    assert result.cell.id in said
    assert "stored adapter" in said
    assert f"accuracy: {result.accuracies[0]:.2f} %" in said
    assert "the logits of 16 test images are the same as those before saving" in said
    names = load_file(tmp_path / "model" / "adapter.safetensors")
    assert {name.split("/")[0] for name in names} == {"classifier", "coefficients", "probe", "u", "v"}
    load_model(tmp_path / "model", world.loaded.backbone(result.cell.backbone))
    with pytest.raises(UserError, match="is there already"):
        invoke("export", result.cell.id, "-o", tmp_path / "model", *store)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fewshot.tiny-clp.glyph-inks.k2.bolt.s1"], r"did you mean 'fewshot\.tiny-clip\.glyph-inks\.k2\.bolt\.s1--"),
        (["fewshot.tiny-clip.glyph-inks.k"], "cells begin with"),
        (["fewshot", "--as", "state_dict", "--with-basis"], "holds the merged tower"),
        (["fewshot.tiny-clip.glyph-inks.k2.maple", "--as", "huggingface"], "maple learns tokens of the image tower"),
    ],
)
def test_errors_of_the_command(words: list[str], message: str, world: World) -> None:
    for method in ("bolt", "zero_shot", "maple"):
        finished(world, method)
    with pytest.raises(UserError, match=message):
        invoke("export", *words, "--store", world.settings.store_url, "--device", "cpu")


@pytest.fixture(scope="module")
def tracked(
    world: World, tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase
) -> tuple[TrackingLocation, Result]:
    """Return a tracking store with the run of one cell."""
    folder = tmp_path_factory.mktemp("mlflow")
    give_database(folder / "mlflow.db")
    result = finished(world, "bolt")
    place = TrackingLocation(f"sqlite:///{folder}/mlflow.db", (folder / "artifacts").as_uri())
    tracker = Tracker(place, "world", Store(world.settings.store_url).adapter_folder)
    tracker.log_result(result, Labels("bolt", "Glyphs"))
    tracker.log_result(finished(world, "lora"), Labels("lora", "Glyphs"))
    return place, result


def test_the_run_of_a_cell_has_its_adapter(world: World, tracked: tuple[TrackingLocation, Result]) -> None:
    from mlflow.tracking import MlflowClient

    location, result = tracked
    client = MlflowClient(location.uri)
    (experiment,) = (e.experiment_id for e in client.search_experiments() if e.name == "world")
    runs = {run.data.tags["cell"]: run.info.run_id for run in client.search_runs([experiment])}
    listed = [file.path for file in client.list_artifacts(runs[result.cell.id], "adapter")]
    assert sorted(listed) == ["adapter/adapter.safetensors", "adapter/bolt.json"]
    place = Path(client.download_artifacts(runs[result.cell.id], "adapter"))
    backbone, sources = world.loaded.backbone(result.cell.backbone), CellInputs(result.cell, world.loaded).sources
    assert load_model(place, backbone, sources).about.notes["cell"] == result.cell.id
    assert client.list_artifacts(runs[world.pick("lora").id]) == []


def test_a_registered_model_predicts(world: World, tracked: tuple[TrackingLocation, Result], tmp_path: Path) -> None:
    """Runs ``mlflow models predict`` in a process that cannot import Ray or the engine."""
    location, result = tracked
    made = restore_model(result, world.loaded)
    save_model(made, result, world.loaded, tmp_path / "model", "state_dict")
    example = example_image(result, world.loaded)
    assert register_model(location, result.cell.id, tmp_path / "model", "inks", example) == 1
    assert register_model(location, result.cell.id, tmp_path / "model", "inks", example) == 2
    images = world.loaded.get(Images(result.cell.dataset, "test", InputSize(made.model.tower.shape.image_size)))
    rows, pictures = [], [Image.fromarray(images.image(row).permute(1, 2, 0).numpy()) for row in range(3)]
    for picture in pictures:
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        rows.append([base64.b64encode(stream.getvalue()).decode()])
    content = {"dataframe_split": {"columns": ["image"], "data": rows}, "params": {"all_scores": True}}
    (tmp_path / "input.json").write_text(json.dumps(content))
    command = [sys.executable, "-m", "mlflow", "models", "predict", "-m", "models:/inks/1", "--env-manager", "local"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": location.uri, "PYTHONSAFEPATH": "1"}
    command += ["-i", str(tmp_path / "input.json"), "-o", str(tmp_path / "output.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads((tmp_path / "output.json").read_text())["predictions"]
    expected = made.model.predict(pictures)
    assert [answer["label"] for answer in answers] == [prediction.label for prediction in expected]
    for answer, prediction in zip(answers, expected, strict=True):
        assert answer["score"] == pytest.approx(prediction.score, abs=1e-5)
        assert answer["scores"] == pytest.approx(dict(prediction.scores), abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*type hint")  # MLflow's own, when it is imported
def test_the_error_for_a_bad_image_names_its_row(world: World) -> None:
    import pandas as pd

    from orchestrator.tracking.serving import BadImage, ImageClassifier

    served = ImageClassifier()
    result = finished(world, "zero_shot")
    served._model = restore_model(result, world.loaded).model
    good = base64.b64encode(example_image(result, world.loaded)).decode()
    assert list(served.predict(None, pd.DataFrame({"image": [good]}))) == ["label", "score"]
    for bad in ("/etc/hostname", "not base64!", base64.b64encode(b"no image").decode(), None):
        with pytest.raises(BadImage, match="row 1 is not an image file"):
            served.predict(None, pd.DataFrame({"image": [good, bad]}))
    with pytest.raises(BadImage, match="no column 'image'"):
        served.predict(None, pd.DataFrame({"picture": [good]}))


@pytest.mark.filterwarnings("ignore:.*type hint")  # MLflow's own, when it is imported
def test_a_served_model_reads_measured_images_as_files(world: World, tmp_path: Path) -> None:
    import pandas as pd

    from orchestrator.tracking.serving import ImageClassifier

    model = restore_model(finished(world, "zero_shot"), world.loaded).model
    served, path = ImageClassifier(), tmp_path / "a.png"
    served._model = replace(model, about=replace(model.about, range=(0, 3000)))
    Image.fromarray(np.linspace(0, 3000, 1024).reshape(32, 32).astype(np.uint16)).save(path)
    answer = served.predict(None, pd.DataFrame({"image": [base64.b64encode(path.read_bytes()).decode()]}))
    assert answer["score"][0] == pytest.approx(served._model.predict([path])[0].score)
    assert answer["score"][0] != pytest.approx(model.predict([path])[0].score)


def test_an_untracked_cell_cannot_be_registered(tracked: tuple[TrackingLocation, Result], tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no finished run of nobody"):
        register_model(tracked[0], "nobody", tmp_path, "inks", b"")


def test_an_adapter_loads_with_the_exported_sources_under_any_name(world: World, tmp_path: Path) -> None:
    result = finished(world, "bolt")
    store = ["--store", world.settings.store_url]
    invoke("sources", "export", tmp_path / "own", "--cell", result.cell.id, *store)
    own = sorted(path.stem for path in (tmp_path / "own").iterdir())
    assert own == sorted(source.dataset for source in result.cell.sources)
    invoke("sources", "export", tmp_path / "all", *store)
    for number, path in enumerate(sorted((tmp_path / "all").iterdir(), reverse=True)):
        path.rename(path.with_name(f"{number}.safetensors"))
    loaded = world.loaded
    kept = Path(world.settings.store_url, "adapters", result.cell.id)
    backbone = loaded.backbone(result.cell.backbone)
    expected = load_model(kept, backbone, CellInputs(result.cell, loaded).sources)
    images = loaded.get(Images(result.cell.dataset, "test", loaded.image_size(result.cell.backbone))).batch(0, 8)
    for folder in ("own", "all"):
        again = load_model(kept, backbone, bolt.load_sources(tmp_path / folder, backbone))
        torch.testing.assert_close(again.logits(images), expected.logits(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--backbone", "tiny-clap"], "tiny-clip"),
        (["--cell", "fewshot.nothing"], "fewshot.nothing"),
        (["--store", "{empty}"], "no source models"),
    ],
)
def test_missing_source_models_are_refused(words: list[str], named: str, world: World, tmp_path: Path) -> None:
    given = [word.format(empty=tmp_path / "empty") for word in words]
    with pytest.raises(UserError, match=named):
        invoke("sources", "export", tmp_path / "x", "--store", world.settings.store_url, *given)
    assert not (tmp_path / "x").exists()


def test_exported_files_are_not_replaced(world: World, tmp_path: Path) -> None:
    result = finished(world, "bolt")
    words = ("sources", "export", tmp_path, "--cell", result.cell.id, "--store", world.settings.store_url)
    invoke(*words)
    with pytest.raises(UserError, match="is there already"):
        invoke(*words)
