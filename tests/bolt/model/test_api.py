"""The library by itself: adapt, predict, save and load, without the orchestrator."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import bolt
from bolt.clip.backbone import Backbone
from bolt.clip.image_files import Reading, open_image
from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels, normalise
from bolt.clip.tensor_names import matrix_names
from bolt.methods import METHODS
from bolt.model.checkpoint_sources import CheckpointSources
from bolt.model.loading import BackboneMismatch, UnreadableModel, load_model
from bolt.model.model import Model
from bolt.model.saving import FORMS, Form, adapter_files
from bolt.spectral.directions import top_directions
from bolt.spectral.sources import SelectedSources, Sources
from bolt.spectral.spectral_change import BasisMismatch
from bolt.spectral.spectral_linear import NonFiniteTensor
from bolt.task.task import Adapted
from tests.helpers.towers import SIZE, RandomSources, random_backbone, random_clip
from tests.helpers.waiting import TIMEOUT

NAMES = ["red things", "green things", "blue things"]


def pictures(count: int = 4) -> tuple[list[Image.Image], list[int]]:
    """Return noisy images in three colours; no image is square."""
    generator = np.random.default_rng(1)
    images, labels = [], []
    for label in range(len(NAMES)):
        for _ in range(count):
            pixels = generator.integers(0, 120, (40, 52, 3))
            pixels[..., label] += 120
            images.append(Image.fromarray(pixels.astype(np.uint8)))
            labels.append(label)
    return images, labels


IMAGES, LABELS = pictures()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Path:
    """Make a folder of three fine-tuned towers."""
    folder = tmp_path_factory.mktemp("checkpoints")
    base = backbone.tower.state_dict_open_clip()
    for name, vector in RandomSources(backbone, count=3).vectors.items():
        save_file({key: base[key] + vector[key] for key in base}, folder / f"{name}.safetensors")
    return folder


@pytest.fixture(scope="module")
def sources(checkpoints: Path, backbone: Backbone) -> CheckpointSources:
    return bolt.load_sources(checkpoints, backbone)


def adapted(backbone: Backbone, method: str, sources: Sources | None = None) -> Model:
    """Adapt to ``IMAGES`` with a method, with the method's settings for tests."""
    labels = LABELS if "fewshot" in METHODS[method].tracks else None
    start = backbone.tower.state_dict_open_clip() if METHODS[method].meta_recipe else None
    settings = dict(METHODS[method].test_settings)
    return bolt.adapt(backbone, IMAGES, labels, NAMES, method=method, sources=sources, initial=start, **settings)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_computes_in_its_backbones_number_format(form: Form, backbone: Backbone, tmp_path: Path) -> None:
    model = bolt.adapt(
        backbone, IMAGES, LABELS, NAMES, method="full_finetune", epochs=1, precision="bfloat16", learning_rate=1e-3
    )
    exact = bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="full_finetune", epochs=1, learning_rate=1e-3)
    assert backbone.precision is None
    assert not torch.equal(model.logits(IMAGES), exact.logits(IMAGES))
    model.save(tmp_path / "model", form)
    again = load_model(tmp_path / "model", backbone.at("bfloat16"))
    torch.testing.assert_close(model.logits(IMAGES), again.logits(IMAGES))
    assert load_model(tmp_path / "model", backbone).tower.precision is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import bolt; dir(bolt)", "torch numpy PIL open_clip ray mlflow orchestrator"),
        ("import bolt; bolt.adapt, bolt.METHODS, bolt.load_model", "ray mlflow orchestrator open_clip peft sklearn"),
    ],
    ids=["the package", "all of it"],
)
def test_importing_the_library_leaves_out_what_it_does_not_need(code: str, absent: str) -> None:
    script = f"{code}; import sys; found = set({absent.split()}) & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr


def test_the_library_offers_its_names_and_no_others() -> None:
    assert set(bolt.__all__) <= set(dir(bolt))
    assert all(getattr(bolt, name) is not None for name in bolt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'adopt'"):
        _ = bolt.adopt


def test_a_model_tells_colours_apart_and_says_how_sure_it_is(backbone: Backbone) -> None:
    model = adapted(backbone, "logistic_probe")
    found = model.predict(IMAGES)
    assert [prediction.label for prediction in found] == [NAMES[label] for label in LABELS]
    for prediction in found:
        assert list(prediction.scores) == NAMES
        assert sum(prediction.scores.values()) == pytest.approx(1)
        assert prediction.score == max(prediction.scores.values()) == prediction.scores[prediction.label]
    assert model.predict([]) == []
    with pytest.raises(TypeError, match="a list of images"):
        model.predict("photograph.jpg")


def test_a_broken_file_among_many_once_had_no_name(backbone: Backbone, tmp_path: Path) -> None:
    IMAGES[0].save(tmp_path / "whole.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "whole.png").read_bytes()[:80])
    files = [tmp_path / "whole.png", tmp_path / "broken.png"]
    with pytest.raises(OSError, match=r"broken\.png cannot be decoded"):
        adapted(backbone, "zero_shot").predict(files)
    with pytest.raises(OSError, match=r"broken\.png cannot be decoded"):
        bolt.adapt(backbone, files, [0, 1], NAMES[:2], method="zero_shot")


@pytest.mark.parametrize(
    "image",
    [torch.rand(3, 8, 8), torch.zeros(8, 8, 3, dtype=torch.uint8), np.zeros((8, 8, 3), np.uint8), b"\x89PNG", None],
)
def test_what_is_no_image_is_refused_and_not_taken_for_a_dark_one(backbone: Backbone, image: Any) -> None:
    with pytest.raises(TypeError, match="an image"):
        adapted(backbone, "zero_shot").predict([image])
    with pytest.raises(TypeError, match="an image"):
        bolt.adapt(backbone, [IMAGES[0], image], [0, 1], NAMES[:2], method="zero_shot")
    with pytest.raises(TypeError, match="uint8"):
        adapted(backbone, "zero_shot").predict(torch.rand(2, 3, SIZE, SIZE))
    with pytest.raises(TypeError, match="give a list of images of any size"):
        adapted(backbone, "zero_shot").predict(torch.zeros(1, 3, SIZE // 2, SIZE * 2, dtype=torch.uint8))


def test_pictures_go_through_the_transform_of_the_benchmark(backbone: Backbone) -> None:
    model = adapted(backbone, "zero_shot")
    expected = torch.stack([torch.from_numpy(evaluation_pixels(image, InputSize(SIZE))) for image in IMAGES])
    assert torch.equal(model.pixels(IMAGES), expected)
    features = backbone.encode_images(expected)
    head = backbone.zero_shot_head(NAMES, ["a photo of a {}."])
    logits = backbone.logit_scale * torch.nn.functional.normalize(features, dim=-1) @ head.T
    torch.testing.assert_close(model.logits(IMAGES), logits, rtol=1e-5, atol=1e-4)
    assert torch.equal(model.logits(IMAGES), model.logits(expected))


def test_the_same_call_gives_the_same_bits(backbone: Backbone, sources: CheckpointSources) -> None:
    def logits(seed: int) -> Tensor:
        model = bolt.adapt(backbone, IMAGES, LABELS, NAMES, sources=sources, seed=seed, top_k=2, epochs=2)
        return model.logits(IMAGES)

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))


def test_a_photograph_is_turned_upright_by_a_model_of_images_without_exif(backbone: Backbone) -> None:
    turned = Image.fromarray(np.asarray(IMAGES[0]))
    turned.getexif()[0x0112] = 6  # a quarter turn
    upright = Image.fromarray(np.rot90(np.asarray(IMAGES[0]), -1))
    model = bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="zero_shot")
    assert torch.equal(model.pixels([turned]), model.pixels([upright]))
    taught, same = (
        bolt.adapt(backbone, [first, *IMAGES[1:]], LABELS, NAMES, method="tip_adapter") for first in (turned, upright)
    )
    assert torch.equal(taught.logits(IMAGES[:3]), same.logits(IMAGES[:3]))


def test_images_without_labels_are_adapted_to_at_test_time(backbone: Backbone, sources: CheckpointSources) -> None:
    model = bolt.adapt(backbone, IMAGES, None, NAMES, method="bolt", sources=sources, alphas=[1.0, 3.0])
    assert model.about.notes["alpha_by"] == "mutual information"
    assert not torch.equal(model.logits(IMAGES), adapted(backbone, "zero_shot").logits(IMAGES))


@pytest.mark.parametrize(
    ("images", "labels", "arguments", "message"),
    [
        (IMAGES, LABELS[1:], {}, "12 images and 11 labels"),
        (IMAGES, [3, *LABELS[1:]], {}, "labels are 0 to 2"),
        (IMAGES, [0.9, *LABELS[1:]], {}, "labels are whole numbers"),
        (IMAGES, [NAMES[label] for label in LABELS], {}, "labels are whole numbers"),
        (IMAGES, np.eye(3)[LABELS], {}, "labels are whole numbers"),
        (IMAGES, LABELS, {"prompts": {name: f"a {name}" for name in NAMES}}, r"a list, such as \['a red things'\]"),
        (IMAGES, LABELS, {"precision": "float16"}, "not 'float16'"),
        (IMAGES[:8], LABELS[:8], {}, "class 2 has no image"),
        (IMAGES, LABELS, {"method": "bolt"}, "sources=bolt.load_sources"),
        (IMAGES, LABELS, {"method": "layer_norm"}, "without labels only"),
        (IMAGES, None, {"method": "linear_probe"}, "needs labels"),
        (IMAGES, LABELS, {"method": "meta_init"}, "this task has none"),
    ],
)
def test_what_cannot_be_adapted_to_is_said(
    images: Sequence[Image.Image], labels: list[int] | None, arguments: dict[str, Any], message: str, backbone: Backbone
) -> None:
    with pytest.raises(ValueError, match=message):
        bolt.adapt(backbone, images, labels, NAMES, **{"method": "linear_probe", **arguments})


def test_names_and_labels_may_be_arrays_but_no_text_and_no_mapping(backbone: Backbone) -> None:
    import pandas as pd

    labels = pd.Series(LABELS, index=range(5, 17))
    model = bolt.adapt(backbone, IMAGES, labels, np.array(NAMES), method="tip_adapter")  # type: ignore[arg-type]
    expected = bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="tip_adapter")
    assert torch.equal(model.logits(IMAGES), expected.logits(IMAGES))
    assert model.about.class_names == tuple(NAMES)
    for names in ("rgb", dict.fromkeys(range(3), "red")):
        with pytest.raises(TypeError, match="class_names is a list"):
            bolt.adapt(backbone, IMAGES, LABELS, names, method="zero_shot")  # type: ignore[arg-type]


def test_a_folder_of_class_folders_gives_images_labels_and_words(tmp_path: Path) -> None:
    for label, name in enumerate(("red_things", "green-things")):
        (tmp_path / name).mkdir()
        for index in range(2):
            IMAGES[4 * label].save(tmp_path / name / f"{index}.png")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "red_things" / "notes.txt").write_text("not an image")
    with pytest.warns(UserWarning, match="1 file without an image suffix"):
        images, labels, names = bolt.read_folder(tmp_path)
    assert names == ["green things", "red things"]
    assert labels == [0, 0, 1, 1]
    assert np.array_equal(np.asarray(images[2]), np.asarray(IMAGES[0]))
    (tmp_path / "red_things" / "notes.txt").unlink()
    with pytest.raises(FileNotFoundError, match="no sub-folder with images"):
        bolt.read_folder(tmp_path / "red_things")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        bolt.read_folder(tmp_path / "nowhere")
    (tmp_path / "whole").mkdir()
    for name in ("red_things", "green-things"):
        (tmp_path / name).rename(tmp_path / "whole" / name)
    (tmp_path / "whole").rename(tmp_path / "train")
    assert bolt.read_folder(tmp_path)[1:] == (labels, names), "from train/"
    broken = tmp_path / "train" / "red_things" / "1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(OSError, match=str(broken)):
        bolt.read_folder(tmp_path)


def test_classes_with_equal_words_are_named(backbone: Backbone) -> None:
    with pytest.warns(UserWarning, match="'red things' = 'red things'"):
        bolt.adapt(backbone, IMAGES, LABELS, ["red things", "green things", "red things"], method="zero_shot")


def test_checkpoints_on_disk_are_the_sources_they_hold(sources: CheckpointSources, backbone: Backbone) -> None:
    base, known = backbone.tower.state_dict_open_clip(), RandomSources(backbone, count=3)
    vectors = [{name: (base[name] + vector[name]) - base[name] for name in base} for vector in known.vectors.values()]
    assert sources.names == ("source_0", "source_1", "source_2")
    for name in matrix_names(base):
        mean = torch.stack([vector[name] for vector in vectors]).mean(dim=0)
        torch.testing.assert_close(sources.mean_task_vector(name), mean, rtol=1e-6, atol=1e-7)
        for asked in (2, 20):  # 20 are more than the first reading keeps
            for found, vector in zip(sources.directions(name, asked), vectors, strict=True):
                expected = top_directions(vector[name], asked)
                assert torch.equal(found.u, expected.u)
                assert torch.equal(found.s, expected.s)
    for source, vector in zip(sources.names, vectors, strict=True):
        assert all(torch.equal(sources.task_vector(source)[name], vector[name]) for name in base)


def test_a_source_can_be_left_out(checkpoints: Path, backbone: Backbone, tmp_path: Path) -> None:
    assert bolt.load_sources(checkpoints, backbone, leave_out=["source_1"]).names == ("source_0", "source_2")
    with pytest.raises(KeyError, match="source_9"):
        bolt.load_sources(checkpoints, backbone, leave_out=["source_9"])
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        bolt.load_sources(tmp_path, backbone)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", sorted(name for name in METHODS if METHODS[name].tracks != {"tta_image"}))
def test_what_is_read_was_saved(
    method: str, form: Form, backbone: Backbone, sources: CheckpointSources, tmp_path: Path
) -> None:
    model = adapted(backbone, method, sources)
    if form == "huggingface" and model.tower.prompts is not None:
        pytest.skip("transformers has no place for learned tokens, and saving is refused")
    model.save(tmp_path / "model", form)
    again = bolt.load_model(tmp_path / "model", *((backbone, sources) if form == "adapter" else ()))
    assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
    assert again.about == replace(model.about, notes=again.about.notes)
    assert again.about.notes["method"] == METHODS[method].title
    assert again.predict(IMAGES[:1]) == model.predict(IMAGES[:1])


def test_a_method_of_single_images_makes_no_model(backbone: Backbone, sources: CheckpointSources) -> None:
    with pytest.raises(ValueError, match="every image anew"):
        adapted(backbone, "zero", sources)


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


def test_sources_without_files_are_found_by_their_names(backbone: Backbone, tmp_path: Path) -> None:
    in_memory = RandomSources(backbone, count=4)
    model = adapted(backbone, "bolt", SelectedSources(in_memory, [0, 1, 2]))
    model.save(tmp_path / "model")
    for positions in ([0, 1, 2], [2, 3, 0, 1]):
        again = load_model(tmp_path / "model", backbone, SelectedSources(in_memory, positions))
        assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))


@pytest.mark.parametrize(
    "names",
    [
        {"c": 2, "b": 1, "a": 0},
        {"source_1": 0, "source_2": 1, "source_0": 2},
        {"a": 0, "of-the-target": None, "b": 1, "z": 2},
        {"source_2": 2, "of-the-target": None, "source_1": 1, "source_0": 0},
    ],
)
def test_sources_are_found_by_the_digests_of_their_files(
    names: dict[str, int | None], backbone: Backbone, sources: CheckpointSources, checkpoints: Path, tmp_path: Path
) -> None:
    """Files may be renamed, names may be swapped, and there may be additional files."""
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "model")
    (tmp_path / "files").mkdir()
    state = backbone.tower.state_dict_open_clip()
    for name, number in names.items():
        file = tmp_path / "files" / f"{name}.safetensors"
        if number is None:
            save_file({key: tensor * 1.01 for key, tensor in state.items()}, file)
        else:
            file.write_bytes((checkpoints / f"source_{number}.safetensors").read_bytes())
    again = load_model(tmp_path / "model", backbone, bolt.load_sources(tmp_path / "files", backbone))
    assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))
    assert again.change.sources == sources.names


def test_a_model_finds_its_sources_by_name(
    backbone: Backbone, sources: CheckpointSources, checkpoints: Path, tmp_path: Path
) -> None:
    model = adapted(backbone, "bolt", sources)
    model.save(tmp_path / "model")
    index = json.loads((tmp_path / "model" / "bolt.json").read_text())
    assert len(index["basis"].pop("digests")) == 3
    (tmp_path / "model" / "bolt.json").write_text(json.dumps(index))
    files = {f"source_{number}": checkpoints / f"source_{number}.safetensors" for number in (2, 0, 1)}
    again = load_model(tmp_path / "model", backbone, CheckpointSources(backbone, files))
    assert torch.equal(again.logits(IMAGES), model.logits(IMAGES))


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
    tiny = {**METHODS["bolt"].test_settings, **settings}
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


def test_damaged_and_foreign_folders_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    model = adapted(backbone, "zero_shot")

    def saved(name: str) -> Path:
        model.save(tmp_path / name, "state_dict")
        return tmp_path / name

    (saved("short") / "visual.safetensors").unlink()
    with open(saved("flipped") / "visual.safetensors", "r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x7f")
    index = json.loads((saved("future") / "bolt.json").read_text())
    (tmp_path / "future" / "bolt.json").write_text(json.dumps({**index, "format": 2}))
    (saved("halved") / "bolt.json").write_text(json.dumps(index)[:200])
    del index["about"]["mean"]
    (saved("less") / "bolt.json").write_text(json.dumps(index))
    for name, message in {
        "short": "visual.safetensors is missing",
        "flipped": "checksum differs",
        "future": "format 2",
        "halved": "cannot be read",
        "less": "KeyError",
        "nothing": "holds no saved model",
    }.items():
        with pytest.raises(UnreadableModel, match=message):
            load_model(tmp_path / name)


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


def test_of_classes_with_equal_names_the_highest_score_is_kept(backbone: Backbone) -> None:
    model = adapted(backbone, "zero_shot")
    model = replace(model, about=replace(model.about, class_names=("one", "two", "two")))
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    probabilities = model.logits(images).softmax(dim=-1)
    for prediction, row in zip(model.predict(images), probabilities.tolist(), strict=True):
        assert prediction.scores == {"one": row[0], "two": max(row[1:])}
        assert prediction.scores[prediction.label] == prediction.score


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("class_names", "abc", "class_names cannot be 'abc'"),
        ("class_names", {"a": 0, "b": 1, "c": 2}, "class_names cannot be"),
        ("class_names", ["a", "b", 3], "class_names cannot be"),
        ("class_names", ["a", "b"], "2 class names for a classifier of 3 classes"),
        ("mean", [123.7, 116.3, 103.5], "mean cannot be"),
        ("mean", [0.5], "mean cannot be"),
        ("mean", ["a", "b", "c"], "not a complete model"),
        ("std", [0, 0, 0], "std cannot be"),
        ("resize", "crop", "resize cannot be 'crop'"),
        ("interpolation", "nearest", "interpolation cannot be 'nearest'"),
        ("notes", [1], "notes cannot be"),
        ("bands", [0, 1, 2], "bands must be three numbers"),
        ("bands", [1.5, 2, 3], "bands must be three numbers"),
        ("range", [3000, 0], "a range must be"),
        ("range", [3000], "a range must be"),
        ("range", [0, 3000, 4000], "a range must be"),
    ],
)
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


def test_a_plain_function_as_classifier_can_be_measured_and_not_kept(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="Classifier"):
        Model.from_adapted(backbone, Adapted(classify=lambda features: features), NAMES)
    with pytest.raises(ValueError, match="2 class names for a classifier of 3 classes"):
        Model.from_adapted(backbone, Adapted(adapted(backbone, "zero_shot").classifier), NAMES[:2])
