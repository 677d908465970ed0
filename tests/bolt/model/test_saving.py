"""Models on disk: every form comes back with the same bits, other libraries read it, and what is damaged is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import bolt
from bolt.clip.backbone import Backbone
from bolt.clip.image_files import Reading, open_image
from bolt.clip.preprocess import normalise
from bolt.methods import METHODS
from bolt.model.checkpoint_sources import CheckpointSources
from bolt.model.loading import BackboneMismatch, UnreadableModel, load_model
from bolt.model.saving import FORMS, Form, adapter_files
from bolt.spectral.sources import SelectedSources
from bolt.spectral.spectral_change import BasisMismatch
from bolt.spectral.spectral_linear import NonFiniteTensor
from tests.bolt.model.pictures import IMAGES, LABELS, NAMES, adapted
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import SIZE, RandomSources, random_backbone, random_clip


@pytest.mark.parametrize("form", FORMS)
def test_a_model_computes_in_its_backbones_number_format(form: Form, backbone: Backbone, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"method": "full_finetune", "epochs": 1, "learning_rate": 1e-3}
    model = bolt.adapt(backbone, IMAGES, LABELS, NAMES, precision="bfloat16", **quick)
    exact = bolt.adapt(backbone, IMAGES, LABELS, NAMES, **quick)
    assert backbone.precision is None
    assert not torch.equal(model.logits(IMAGES), exact.logits(IMAGES))
    model.save(tmp_path / "model", form)
    again = load_model(tmp_path / "model", backbone.at("bfloat16"))
    torch.testing.assert_close(model.logits(IMAGES), again.logits(IMAGES))
    assert load_model(tmp_path / "model", backbone).tower.precision is None


EVERY_FORM = {"adamerging", "bolt", "coop", "full_finetune", "lora", "maple", "tip_adapter"}
"""One method of each kind of change. For the others, ``adapter`` is enough: it alone depends on how a tower changed."""


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(name for name in METHODS if METHODS[name].tracks != {"tta_image"}))
def test_what_is_read_was_saved(method: str, backbone: Backbone, sources: CheckpointSources, tmp_path: Path) -> None:
    """Transformers has no place for learned tokens, and such a model is not saved for it."""
    model = adapted(backbone, method, sources)
    assert METHODS.keys() >= EVERY_FORM
    forms = FORMS if model.tower.prompts is None else ("adapter", "state_dict")
    for form in forms if method in EVERY_FORM else ("adapter",):
        model.save(tmp_path / form, form)
        again = bolt.load_model(tmp_path / form, *((backbone, sources) if form == "adapter" else ()))
        assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
        assert again.about == replace(model.about, notes=again.about.notes)
        assert again.about.notes["method"] == METHODS[method].title
        assert again.predict(IMAGES[:1]) == model.predict(IMAGES[:1])


@pytest.mark.filterwarnings("ignore:the sources b and c are the same checkpoint")
def test_coefficients_find_or_bring_their_basis(
    backbone: Backbone, sources: CheckpointSources, checkpoints: Path, tmp_path: Path
) -> None:
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "alone")
    model.save(tmp_path / "with", with_basis=True)
    stored = load_file(tmp_path / "alone" / "adapter.safetensors")
    assert {name.split("/")[0] for name in stored} == {"classifier", "coefficients", "probe"}
    numbers = [tensor.numel() for name, tensor in stored.items() if name.startswith("coefficients/")]
    assert sum(numbers) == model.about.notes["coefficients"]
    for again in (load_model(tmp_path / "alone", backbone, sources), load_model(tmp_path / "with", backbone)):
        assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
    with pytest.raises(UnreadableModel, match="source_0, source_1, source_2"):
        load_model(tmp_path / "alone", backbone)
    first, second, third = (checkpoints / f"source_{index}.safetensors" for index in range(3))
    in_another_order = CheckpointSources(backbone, {"source_2": third, "source_0": first, "source_1": second})
    assert torch.equal(load_model(tmp_path / "alone", backbone, in_another_order).logits(IMAGES), model.logits(IMAGES))
    for other in ({"a": first, "b": second}, {"a": first, "b": second, "c": second}):
        with pytest.raises(BasisMismatch, match=f"{', '.join(other)}.*: source_0, source_1, source_2"):
            load_model(tmp_path / "alone", backbone, CheckpointSources(backbone, other))


def test_sources_without_files_or_digests_are_found_by_their_names(
    backbone: Backbone, sources: CheckpointSources, checkpoints: Path, tmp_path: Path
) -> None:
    in_memory = RandomSources(backbone, count=4)
    model = adapted(backbone, "bolt", SelectedSources(in_memory, [0, 1, 2]))
    model.save(tmp_path / "memory")
    for positions in ([0, 1, 2], [2, 3, 0, 1]):
        again = load_model(tmp_path / "memory", backbone, SelectedSources(in_memory, positions))
        assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "files")
    index = json.loads((tmp_path / "files" / "bolt.json").read_text())
    assert len(index["basis"].pop("digests")) == 3
    (tmp_path / "files" / "bolt.json").write_text(json.dumps(index))
    files = {f"source_{number}": checkpoints / f"source_{number}.safetensors" for number in (2, 0, 1)}
    again = load_model(tmp_path / "files", backbone, CheckpointSources(backbone, files))
    assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))


@pytest.mark.parametrize(
    "names",
    [
        {"c": 2, "b": 1, "a": 0}, {"source_1": 0, "source_2": 1, "source_0": 2},
        {"a": 0, "other": None, "b": 1, "z": 2}, {"source_2": 2, "other": None, "source_1": 1, "source_0": 0},
    ],
)  # fmt: skip
def test_sources_are_found_by_the_digests_of_their_files(
    names: dict[str, int | None], backbone: Backbone, sources: CheckpointSources, checkpoints: Path, tmp_path: Path
) -> None:
    """Files may be renamed, names may be swapped, and there may be additional files."""
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "model")
    (tmp_path / "files").mkdir()
    other = {key: tensor * 1.01 for key, tensor in backbone.tower.state_dict_open_clip().items()}
    for name, number in names.items():
        file = tmp_path / "files" / f"{name}.safetensors"
        if number is None:
            save_file(other, file)
        else:
            shutil.copyfile(checkpoints / f"source_{number}.safetensors", file)
    again = load_model(tmp_path / "model", backbone, bolt.load_sources(tmp_path / "files", backbone))
    assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
    assert again.change.sources == sources.names


@pytest.mark.parametrize(
    "settings",
    [
        {"orthogonalisation": "whitening"}, {"sign": "relu"}, {"other_tensors": "averaged"},
        {"matrices": ("projection",)}, {"basis": "pretrained"}, {"basis": "random"},
    ],
    ids=lambda settings: "-".join(map(str, *settings.items())),
)  # fmt: skip
def test_every_form_of_the_start_comes_back_from_its_coefficients(
    settings: dict[str, object], backbone: Backbone, sources: CheckpointSources, tmp_path: Path
) -> None:
    tiny = {**quick_settings("bolt"), **settings}
    model = bolt.adapt(backbone, IMAGES, LABELS, NAMES, sources=sources, **tiny)
    model.save(tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model", backbone, sources).logits(IMAGES), model.logits(IMAGES))


def test_a_frozen_tower_is_not_stored(backbone: Backbone, tmp_path: Path) -> None:
    model = adapted(backbone, "linear_probe")
    model.save(tmp_path / "model")
    assert {name.split("/")[0] for name in load_file(tmp_path / "model" / "adapter.safetensors")} == {"classifier"}
    assert load_model(tmp_path / "model", backbone).tower is backbone.tower


def test_open_clip_loads_the_state_dict(backbone: Backbone, sources: CheckpointSources, tmp_path: Path) -> None:
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "model", "state_dict")
    (as_source,) = bolt.load_sources(tmp_path, backbone).names
    moved = bolt.load_sources(tmp_path, backbone).task_vector(as_source)  # it "holds 2 checkpoints" before
    frozen, changed = backbone.tower.state_dict_open_clip(), model.tower.state_dict_open_clip()
    assert all(torch.equal(moved[name], changed[name] - frozen[name]) for name in frozen)
    clip = random_clip()
    clip.visual.load_state_dict(load_file(tmp_path / "model" / "visual.safetensors"), strict=True)
    mean, std = ({"mean": model.about.mean}, {"std": model.about.std})
    transform = open_clip.image_transform(SIZE, is_train=False, **mean, **std)
    with torch.inference_mode():
        features = clip.visual(torch.stack([transform(image) for image in IMAGES]))
        torch.testing.assert_close(model.classifier(features), model.logits(IMAGES), rtol=1e-5, atol=1e-5)


def test_transformers_loads_the_folder(backbone: Backbone, sources: CheckpointSources, tmp_path: Path) -> None:
    from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "model", "huggingface")
    tower = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "model").eval()
    processor = CLIPImageProcessor.from_pretrained(tmp_path / "model")
    ours = normalise(model.pixels(IMAGES), model.about.mean, model.about.std, "cpu")
    # transformers does not resize with Pillow, so a pixel may differ by 1 / 255.
    theirs = processor(IMAGES, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1.01 / 255 / min(model.about.std))
    with torch.inference_mode():
        logits = model.classifier(tower(pixel_values=ours).image_embeds)
    torch.testing.assert_close(logits, model.logits(IMAGES), rtol=1e-5, atol=1e-5)


def test_other_weights_are_refused(backbone: Backbone, sources: CheckpointSources, tmp_path: Path) -> None:
    other = random_backbone()
    with torch.no_grad():
        other.tower.ln_post.bias[0] += 1e-6
    swapped = random_backbone(quick_gelu=True)
    assert len({backbone.digest, other.digest, swapped.digest}) == 3
    model = adapted(backbone, "bolt", sources)
    for form in FORMS:
        model.save(tmp_path / form, form)
        for wrong in (other, swapped):
            with pytest.raises(BackboneMismatch) as caught:
                load_model(tmp_path / form, wrong, sources)
            assert backbone.digest in str(caught.value)
            assert wrong.digest in str(caught.value)
    with pytest.raises(UnreadableModel, match=f"pass the backbone .* {backbone.digest}"):
        load_model(tmp_path / "adapter")


def test_nothing_that_is_not_finite_is_written(backbone: Backbone, sources: CheckpointSources, tmp_path: Path) -> None:
    model = adapted(backbone, "bolt", sources)
    broken = model.tower.copy(trainable=["ln_post.bias"]).requires_grad_(False)
    broken.ln_post.bias[3] = torch.inf
    for form in FORMS:
        with pytest.raises(NonFiniteTensor, match=r"ln_post\.|post_layernorm"):
            replace(model, tower=broken).save(tmp_path / "model", form)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_is_too_large_is_not_kept(backbone: Backbone) -> None:
    model = adapted(backbone, "full_finetune")
    files = adapter_files(model)
    assert files is not None
    assert list(files)[-1] == "bolt.json"
    assert adapter_files(model, 100_000) is None


def test_a_model_is_written_into_a_new_folder_only(backbone: Backbone, tmp_path: Path) -> None:
    model = adapted(backbone, "zero_shot")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        model.save(tmp_path / "mine")
    with pytest.raises(ValueError, match="adapter, state_dict, huggingface, not as 'onnx'"):
        model.save(tmp_path / "other", "onnx")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.tex"]


def test_a_path_from_the_home_folder_on_is_not_a_folder_of_that_name(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="with_basis is True or False"):
        adapted(backbone, "zero_shot").save("~/mine", with_basis="no")  # type: ignore[arg-type]
    adapted(backbone, "zero_shot").save("~/mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert load_model("~/mine", backbone).about.class_names == tuple(NAMES)
    assert bolt.load_sources("~/mine", backbone).names == ("adapter",)


def test_an_empty_folder_behind_a_link_is_filled(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    adapted(backbone, "zero_shot").save(tmp_path / "link")
    assert load_model(tmp_path / "real", backbone).about.class_names == tuple(NAMES)


def test_damaged_and_foreign_folders_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    model = adapted(backbone, "zero_shot")

    def saved(name: str) -> Path:
        model.save(tmp_path / name, "state_dict")
        return tmp_path / name

    (saved("short") / "visual.safetensors").unlink()
    with open(saved("flipped") / "visual.safetensors", "r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x7f")
    (saved("cloned") / "visual.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    index = json.loads((saved("future") / "bolt.json").read_text())
    (tmp_path / "future" / "bolt.json").write_text(json.dumps({**index, "format": 2}))
    (saved("halved") / "bolt.json").write_text(json.dumps(index)[:200])
    del index["about"]["mean"]
    (saved("less") / "bolt.json").write_text(json.dumps(index))
    for name, message in {
        "short": "visual.safetensors is missing",
        "flipped": "checksum differs$",
        "cloned": "checksum differs.*git lfs pull",
        "future": "format 2",
        "halved": "cannot be read",
        "less": "KeyError",
        "nothing": "holds no saved model",
    }.items():
        with pytest.raises(UnreadableModel, match=message):
            load_model(tmp_path / name)
    with pytest.raises(TypeError, match=r"backbone is made by bolt\.load_backbone, not 'cpu'"):
        load_model(tmp_path / "less", "cpu")  # type: ignore[arg-type]


def test_a_saved_model_reads_measured_images_as_those_it_learned_from(backbone: Backbone, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        Image.fromarray(np.linspace(0, 3000, 64 * 64).reshape(64, 64).astype(np.uint16) // (number + 1)).save(path)
    reading = Reading(range=(0, 3000))
    model = bolt.adapt(backbone, paths, [0, 0, 1, 1], ["a", "b"], method="tip_adapter", reading=reading)
    as_read = bolt.adapt(backbone, [open_image(path, reading) for path in paths], [0, 0, 1, 1], ["a", "b"],
                         method="tip_adapter", reading=reading)  # fmt: skip
    model.save(tmp_path / "model", "state_dict")
    again = load_model(tmp_path / "model")
    assert again.about.reading == reading
    assert again.pixels(paths[:1]).max() > 250
    for images in (paths, [Image.open(path) for path in paths], [open_image(path, reading) for path in paths]):
        assert torch.equal(again.pixels(images), model.pixels(paths))
        assert torch.equal(again.logits(images), as_read.logits(paths))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("class_names", "abc", "class_names cannot be 'abc'"),
        ("class_names", {"a": 0, "b": 1, "c": 2}, "class_names cannot be"),
        ("class_names", ["a", "b", 3], "class_names cannot be"),
        ("class_names", ["a", "b"], "2 class names for a classifier of 3 classes"),
        ("mean", [123.7, 116.3, 103.5], "mean cannot be"), ("mean", [0.5], "mean cannot be"),
        ("mean", ["a", "b", "c"], "not a complete model"), ("std", [0, 0, 0], "std cannot be"),
        ("resize", "crop", "resize cannot be 'crop'"),
        ("interpolation", "nearest", "interpolation cannot be 'nearest'"),
        ("notes", [1], "notes cannot be"), ("bands", [0, 1, 2], "bands must be three numbers"),
        ("bands", [1.5, 2, 3], "bands must be three numbers"), ("range", [3000, 0], "range must be"),
        ("range", [3000], "range must be"), ("range", [0, 3000, 4000], "range must be"),
    ],
)  # fmt: skip
def test_an_index_that_was_edited_wrongly_gives_no_predictions(
    field: str, value: Any, message: str, backbone: Backbone, tmp_path: Path
) -> None:
    adapted(backbone, "zero_shot").save(tmp_path / "mine", "state_dict")
    path = tmp_path / "mine" / "bolt.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "about": index["about"] | {field: value}}))
    with pytest.raises(UnreadableModel, match=message):
        load_model(tmp_path / "mine")
    path.write_text(json.dumps({**index, "classifier": index["classifier"] | {"numbers": {"scale": "x"}}}))
    with pytest.raises(UnreadableModel, match="not a complete model"):
        load_model(tmp_path / "mine")
    with pytest.raises(UnreadableModel, match="is a file: give the folder"):
        load_model(path)
