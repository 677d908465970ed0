"""``adapt``: a folder of small drawn photographs becomes a model and a page, through all the real parts."""

import errno
import io
import itertools
import os
import shutil
import threading
import time
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

import bolt
from bolt.clip.image_files import Reading
from orchestrator.adapt.adapt_folder import adapt_folder
from orchestrator.adapt.adaptation import Adaptation, summary_lines
from orchestrator.adapt.held_out_fold import HeldOutFold
from orchestrator.adapt.request import read_request
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.artifacts.spec import ArtifactCache, clear_artifact_caches
from orchestrator.catalog import load_catalog
from orchestrator.cli.adapt import split_methods
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions
from orchestrator.models.model_card import CARD
from orchestrator.store import Builder
from orchestrator.util.errors import UserError
from orchestrator.util.locks import file_lock
from tests.helpers.command import invoke
from tests.helpers.photographs import photograph, write_photographs

METHODS = ("linear_probe(epochs=2, search='fixed')", "gda(views=1)", "zero_shot")


def adapt(
    place: Path, methods: tuple[str, ...] = METHODS, said: io.StringIO | None = None, **changes: object
) -> Adaptation:
    """Adapt to the images in ``place/ware``, with the store in ``place/runs``."""
    data_root = str(changes.pop("data_root")) if "data_root" in changes else None
    catalog = tuple(str(file) for file in place.glob("catalog.yaml"))
    settings = RunSettings(
        str(changes.pop("store_url", place / "runs")), data_root, device="cpu", catalog_files=catalog
    )
    console = Console(file=said or io.StringIO(), width=200)
    fields: dict[str, object] = {
        "folder": place / "ware", "model": place / "model", "backbone": "tiny-clip", "sources": None,
        "methods": methods, "minutes": 60.0, "form": "state_dict", "images": DatasetOptions(), "settings": settings,
    }  # fmt: skip
    return adapt_folder(read_request(**{**fields, **changes}, console=console), console)  # type: ignore[arg-type]


def accuracy_of(model: Path, folder: Path) -> float:
    """Return the accuracy of a saved model, in per cent. Classes are compared by name."""
    loaded = bolt.load_model(model)
    files = sorted(folder.rglob("*.jpg"))
    words = {"red_mug": "red mug", "BlueBottle": "blue bottle", "03-green-plate": "green plate"}
    found = [prediction.label for prediction in loaded.predict([str(path) for path in files])]
    return 100 * sum(words[path.parent.name] == label for path, label in zip(files, found, strict=True)) / len(files)


@pytest.fixture(scope="module")
def with_test(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Adaptation]:
    folder = tmp_path_factory.mktemp("adapt")
    write_photographs(folder / "ware" / "train", 6)
    write_photographs(folder / "ware" / "test", 5, first=6)
    return folder, adapt(folder)


def test_the_model_predicts_what_was_measured_on_the_test_images(with_test: tuple[Path, Adaptation]) -> None:
    folder, done = with_test
    assert done.chosen.accuracy == max(trial.accuracy for trial in done.trials)
    assert accuracy_of(folder / "model", folder / "ware" / "test") == pytest.approx(done.evaluation.accuracy)
    notes = bolt.load_model(folder / "model").about.notes
    assert notes["method"] == done.chosen.text
    assert notes["expected_accuracy"] == done.choice.expected
    lines = "\n".join(summary_lines(done))
    assert done.chosen.text in lines
    assert f"{done.evaluation.accuracy:.1f} %" in lines


def test_the_page_says_what_was_chosen_what_to_expect_and_how_to_predict(with_test: tuple[Path, Adaptation]) -> None:
    folder, done = with_test
    page = unescape((folder / "model.html").read_text())
    for fact in (done.chosen.text, f"{done.choice.expected:.1f} %", 'bolt.load_model("model")', "tiny-clip", "red mug"):
        assert fact in page
    assert all(trial.text.partition("(")[0] in page for trial in done.trials)
    assert "<script src" not in page
    assert 'rel="stylesheet"' not in page


def test_the_model_card_says_what_to_expect_and_how_to_load(with_test: tuple[Path, Adaptation]) -> None:
    """Models of ``adapt`` once had no card, unlike models of ``export``."""
    folder, done = with_test
    card = ModelCard.load(folder / "model" / CARD)
    (score,) = card.data.eval_results or []
    assert score.metric_value == round(done.evaluation.accuracy, 2)
    assert done.chosen.candidate.method.name in (card.data.tags or ())
    for fact in (done.chosen.candidate.method.title, f"Expect {done.choice.expected:.1f} %", 'bolt.load_model(".")'):
        assert fact in card.text


def test_a_model_with_learned_tokens_is_read_back_without_its_backbone(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware" / "train", 2)
    write_photographs(tmp_path / "ware" / "test", 2, first=2)
    done = adapt(tmp_path, ("maple(epochs=1, min_steps=1)",))
    assert done.evaluation is not None
    assert accuracy_of(tmp_path / "model", tmp_path / "ware" / "test") == pytest.approx(done.evaluation.accuracy)
    assert bolt.load_model(tmp_path / "model").tower.prompts is not None
    assert "learned tokens" in (tmp_path / "model" / CARD).read_text()


def test_the_model_reads_measured_images_in_the_stated_range(tmp_path: Path) -> None:
    for name, value in (("dark", 100), ("light", 3000)):
        (tmp_path / "ware" / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((6, 6), value + number, np.uint16)).save(tmp_path / "ware" / name / f"{number}.png")
    adapt(tmp_path, ("zero_shot",), images=DatasetOptions(reading=Reading(range=(0, 3000))))
    model = bolt.load_model(tmp_path / "model")
    assert model.pixels([tmp_path / "ware" / "light" / "0.png"]).unique().tolist() == [255]


@pytest.mark.slow
def test_no_test_label_is_used_for_the_choice_or_the_model(with_test: tuple[Path, Adaptation], tmp_path: Path) -> None:
    """With the labels of the test images permuted, only the accuracy on them changes."""
    folder, done = with_test
    shutil.copytree(folder / "ware", tmp_path / "ware")
    test = tmp_path / "ware" / "test"
    names = sorted(path.name for path in test.iterdir())
    for name in names:
        (test / name).rename(test / f"{name}.old")
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        (test / f"{name}.old").rename(test / other)
    poisoned = adapt(tmp_path)
    assert poisoned.chosen.text == done.chosen.text
    assert poisoned.choice == done.choice
    assert poisoned.evaluation.accuracy < done.evaluation.accuracy
    for file in ("visual.safetensors", "classifier.safetensors"):
        assert (tmp_path / "model" / file).read_bytes() == (folder / "model" / file).read_bytes()


@pytest.mark.slow
def test_training_images_are_enough_and_a_killed_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two interrupted runs, the third run builds only the missing folds."""
    write_photographs(tmp_path / "ware", 4)
    build = HeldOutFold.build
    built: list[str] = []

    def stop_at(limit: int) -> None:
        def counted(spec: HeldOutFold, loaded: ArtifactCache, builder: Builder) -> None:
            if len(built) >= limit:
                raise KeyboardInterrupt
            build(spec, loaded, builder)
            built.append(spec.address)

        monkeypatch.setattr(HeldOutFold, "build", counted)

    for limit in (3, 7):
        stop_at(limit)
        with pytest.raises(KeyboardInterrupt):
            adapt(tmp_path)
        assert not (tmp_path / "model").exists()
    stop_at(100)
    done = adapt(tmp_path)
    assert len(built) == len(set(built)) == 4 * len(METHODS)
    assert done.evaluation is None
    assert "cannot" not in summary_lines(done)[1]
    assert sum(total for _, _, total in done.held_out_per_class) == 12
    assert accuracy_of(tmp_path / "model", tmp_path / "ware") >= 0


@pytest.mark.slow
def test_the_test_images_are_encoded_before_the_last_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was killed while it encoded them trained again."""
    write_photographs(tmp_path / "ware" / "train", 2)
    write_photographs(tmp_path / "ware" / "test", 1, first=2)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.adapt.adapt_folder.make_task", stop)
    with pytest.raises(KeyboardInterrupt):
        adapt(tmp_path, ("zero_shot",))
    assert list((tmp_path / "runs" / "features").glob("*test*/manifest.json"))


@pytest.mark.slow
def test_with_one_image_of_a_class_the_first_candidate_is_taken_and_no_accuracy_promised(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 1)
    (tmp_path / "ware" / "red_mug" / "again.jpg").symlink_to(next((tmp_path / "ware" / "red_mug").iterdir()))
    said = io.StringIO()
    done = adapt(tmp_path, ("gda(views=1)", "zero_shot"), said)
    assert f"class {done.images.raw.class_names[0]!r} has one picture only" in said.getvalue()
    assert done.chosen.text == "gda(views=1)"
    assert done.choice.expected is None
    assert "cannot be estimated" in (tmp_path / "model.html").read_text()


def test_a_candidate_that_does_not_fit_the_time_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 3)
    done = adapt(tmp_path, ("zero_shot", "full_finetune(epochs=100)"), minutes=0.05)
    assert done.chosen.text == "zero_shot"
    assert not done.trials[1].held_out
    assert "did not fit" in done.trials[1].left_out
    assert "not tried" in (tmp_path / "model.html").read_text()


def test_cheap_candidates_always_run_and_a_model_at_chance_is_called_one(tmp_path: Path) -> None:
    """With little time, ``adapt`` once tried zero-shot only, and wrote its model at chance without a warning."""
    for label in range(3):
        (tmp_path / "ware" / f"noise {label}").mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng([label, number]).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "ware" / f"noise {label}" / f"{number}.png")
    said = io.StringIO()
    done = adapt(tmp_path, (), said, minutes=1e-6)
    tried = [trial.text for trial in done.trials if trial.held_out]
    assert tried == ["zero_shot", "logistic_probe"]
    assert all("did not fit" in trial.left_out for trial in done.trials if not trial.held_out)
    assert done.images.chance == pytest.approx(100 / 3)
    assert not done.suspects  # a model at chance once questioned nearly every label
    for text in (said.getvalue(), (tmp_path / "model.html").read_text(), (tmp_path / "model" / CARD).read_text()):
        assert "not clearly better than chance" in text
        assert "33.3 %" in text
    assert bolt.load_model(tmp_path / "model").about.notes["better_than_chance"] is False


def test_a_second_process_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    """Two processes once wrote into the working folder at once, and the second failed with a missing file."""
    write_photographs(tmp_path / "ware", 2)
    said, held = io.StringIO(), threading.Event()

    def first() -> None:
        with file_lock(tmp_path / "runs" / "adapt" / "ware.lock"):
            held.set()
            while "waiting" not in said.getvalue():
                time.sleep(0.01)
            assert not (tmp_path / "model").exists()

    other = threading.Thread(target=first)
    other.start()
    assert held.wait(10)
    done = adapt(tmp_path, ("zero_shot",), said)
    other.join()
    assert f"process {os.getpid()}" in said.getvalue()
    assert done.request.model.is_dir()


@pytest.mark.slow
def test_copies_raise_no_promised_accuracy_and_are_listed(tmp_path: Path) -> None:
    """The images are noise, each in four copies. A copy in another fold reveals the class; 100 % were once promised."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 16, 16, 3), dtype=np.uint8)
    for label in range(2):
        (tmp_path / "ware" / f"kind {label}").mkdir(parents=True)
        for number, version in itertools.product(range(8), range(4)):
            image = Image.fromarray(pixels[label, number]).resize((64, 64))
            image.save(tmp_path / "ware" / f"kind {label}" / f"{number}-{version}.png")
    shutil.copy(tmp_path / "ware" / "kind 0" / "0-0.png", tmp_path / "ware" / "kind 1" / "again.png")
    said = io.StringIO()
    done = adapt(tmp_path, ("tip_adapter", "zero_shot"), said)
    assert done.choice.high is not None
    assert done.choice.expected is not None
    assert done.choice.expected < 85
    assert done.choice.high - done.choice.expected > 15, "16 pictures, not 65 images"
    assert "kind 0/0-0.png (kind 0) = kind 1/again.png (kind 1)" in said.getvalue()
    assert "copies of another training image: 49" in (tmp_path / "model.html").read_text()


@pytest.mark.slow
def test_a_wrong_label_is_asked_about_with_its_picture(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware" / "train", 10)
    wrong = tmp_path / "ware" / "train" / "BlueBottle" / "mug.jpg"
    photograph("red_mug", 40).save(wrong)
    write_photographs(tmp_path / "ware" / "test", 2, first=50)
    said = io.StringIO()
    done = adapt(tmp_path, ("logistic_probe", "gda(views=1)"), said)
    assert [(each.origin, each.likely) for each in done.suspects][:1] == [("train/BlueBottle/mug.jpg", "red mug")]
    assert "train/BlueBottle/mug.jpg (blue bottle, or red mug?)" in said.getvalue()
    page = unescape((tmp_path / "model.html").read_text())
    assert "train/BlueBottle/mug.jpg" in page
    assert f'<img src="{done.suspects[0].picture}"' in page


@pytest.mark.slow
def test_classes_that_share_a_vector_are_named(tmp_path: Path) -> None:
    """The tiny CLIP does not know two of these words, so both words get the same vector."""
    for name in ("airplane", "bird", "red"):
        (tmp_path / "ware" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 40), (90 * number, 60, 30)).save(tmp_path / "ware" / name / f"{number}.png")
    said = io.StringIO()
    done = adapt(tmp_path, ("zero_shot",), said)
    assert (done.equal_classes.shared, done.equal_classes.distinct) == ((("airplane", "bird"),), 2)
    before, _, _ = said.getvalue().partition("candidates")
    assert "airplane = bird" in before  # so that a person can stop, and give other words


@pytest.mark.slow
def test_links_in_a_circle_and_names_in_any_script_are_no_obstacle(tmp_path: Path) -> None:
    write_photographs(tmp_path / "ware", 2)
    ware = tmp_path / "ware"
    (ware / "red_mug").rename(ware / "красная кружка 🐍")
    (ware / "BlueBottle" / "again").symlink_to(ware / "BlueBottle")
    (ware / "all of it").symlink_to(ware)
    (ware / "BlueBottle" / "notes.txt").symlink_to("nowhere")
    Image.new("1", (1, 1)).save(ware / "BlueBottle" / "dot.png")
    Image.new("L", (4000, 4000)).save(ware / "BlueBottle" / "large.png")
    done = adapt(tmp_path, ("zero_shot",))
    assert done.images.raw.class_names == ("green plate", "blue bottle", "красная кружка 🐍")
    assert done.images.total == 8


@pytest.mark.slow
@pytest.mark.parametrize("where", ["page", "rename"])
def test_a_full_disk_loses_no_finished_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    write_photographs(tmp_path / "ware", 2)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "page":
            patch.setattr("orchestrator.adapt.adapt_folder.adapt_page", full)
        else:
            patch.setattr(Path, "rename", full)
        with pytest.raises(UserError, match="No space left on device"):
            adapt(tmp_path, ("zero_shot",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "ware"], "no page without its model"
    folds = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "held_out").glob("*/manifest.json")}
    assert len(folds) == 2
    adapt(tmp_path, ("zero_shot",))
    assert (tmp_path / "model").is_dir()
    assert folds == {path: path.stat().st_mtime_ns for path in folds}, "nothing is computed again"
    assert not list(tmp_path.glob(".model*"))


@pytest.mark.slow
def test_checkpoints_of_a_folder_are_the_sources(tmp_path: Path) -> None:
    """Files are named after datasets of the catalog. The sources of an earlier run are forgotten."""
    write_photographs(tmp_path / "ware", 2)
    tiny = load_backbone(load_catalog().backbones["tiny-clip"], "cpu").tower.state_dict_open_clip()
    for folder, names in (("first", ("glyph-digits", "glyph-inks")), ("second", ("aerial-land", "aerial-water"))):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            generator = torch.Generator().manual_seed(number)
            tuned = {key: t + 0.01 * torch.randn(t.shape, generator=generator) for key, t in tiny.items()}
            save_file(tuned, tmp_path / folder / f"{name}.safetensors")
        clear_artifact_caches()  # a process has one catalog
        sources, model = str(tmp_path / folder), tmp_path / f"model-{folder}"
        done = adapt(tmp_path, ("bolt_pooled", "zero_shot"), sources=sources, model=model)
        assert all(trial.held_out for trial in done.trials)
        assert [source.dataset for source in done.trials[0].cell.sources] == list(names)


@pytest.mark.slow
def test_the_sources_of_a_domain_are_fine_tuned_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test features of a source were once left out like those of the user's images, so no source could be built."""
    monkeypatch.chdir(tmp_path)  # `data add` writes bolt.yaml
    write_photographs(tmp_path / "ware", 2)
    for number, name in enumerate(("cups", "tools")):
        write_photographs(tmp_path / name, 5, 10 + 10 * number)
        invoke("data", "add", tmp_path / name, "--domain", "shop", "--catalog", "catalog.yaml")
    done = adapt(tmp_path, ("bolt_pooled",), sources="shop", data_root=tmp_path)
    assert done.chosen.held_out
    assert [source.dataset for source in done.chosen.cell.sources] == ["cups", "tools"]
    assert "- cups: own images" in (tmp_path / "model" / CARD).read_text()


def test_methods_are_split_at_the_commas_between_them() -> None:
    assert split_methods("a, b(c=1,d=(2, 3)) ,e") == ("a", "b(c=1,d=(2, 3))", "e")
    assert split_methods("") == ()
