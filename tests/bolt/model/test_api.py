"""The library by itself: adapt, predict, save and load, without the orchestrator."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import bolt
from bolt.clip.backbone import Backbone
from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels
from bolt.methods import METHODS
from bolt.model.checkpoint_sources import CheckpointSources
from bolt.model.model import Model
from bolt.task.classifiers import CosineClassifier
from bolt.task.scoring import NonFiniteLogits
from bolt.task.task import Adapted
from tests.bolt.model.pictures import IMAGES, LABELS, NAMES, adapted
from tests.helpers.towers import SIZE


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
    [torch.rand(3, 8, 8), torch.zeros(8, 8, 3, dtype=torch.uint8), np.zeros((8, 8, 3), np.uint8), b"\x89PNG", None,
     (IMAGES[0], 0)],
)  # fmt: skip
def test_what_is_no_image_is_refused_and_not_taken_for_a_dark_one(backbone: Backbone, image: Any) -> None:
    with pytest.raises(TypeError, match="an image"):
        adapted(backbone, "zero_shot").predict([image])
    with pytest.raises(TypeError, match="an image"):
        bolt.adapt(backbone, [IMAGES[0], image], [0, 1], NAMES[:2], method="zero_shot")
    with pytest.raises(TypeError, match="uint8"):
        adapted(backbone, "zero_shot").predict(torch.rand(2, 3, SIZE, SIZE))
    with pytest.raises(TypeError, match="images of other sizes in a list"):
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


@pytest.mark.parametrize("images", [{"a.png", "b.png"}, {"a.png": 0}, (image for image in IMAGES), IMAGES[0]])
def test_images_without_an_order_or_a_length_are_refused(images: Any, backbone: Backbone) -> None:
    """A set of paths gave predictions in any order."""
    with pytest.raises(TypeError, match="images must be a list"):
        adapted(backbone, "zero_shot").predict(images)
    with pytest.raises(TypeError, match="images must be a list"):
        bolt.adapt(backbone, images, [0, 1], NAMES[:2], method="zero_shot")


def test_no_image_gives_no_logits_and_cannot_be_adapted_to(backbone: Backbone) -> None:
    model = adapted(backbone, "zero_shot")
    for nothing in (IMAGES[:0], torch.empty(0, 3, SIZE, SIZE, dtype=torch.uint8)):
        assert model.logits(nothing).shape == (0, 3)
    with pytest.raises(ValueError, match="no image"):
        bolt.adapt(backbone, [], None, NAMES, method="trans_clip")


@contextmanager
def switched(switch: Callable[[Any], None], value: Any, usual: Any) -> Iterator[None]:
    switch(value)
    try:
        yield
    finally:
        switch(usual)


@pytest.mark.parametrize(
    "setting",
    [
        torch.inference_mode, torch.no_grad, partial(torch.autocast, "cpu", torch.bfloat16),
        partial(torch.device, "meta"), partial(switched, torch.set_default_dtype, torch.float64, torch.float32),
        partial(switched, torch.set_float32_matmul_precision, "medium", "highest"),
    ],
)  # fmt: skip
def test_settings_of_pytorch_change_no_result(setting: Callable[[], Any], backbone: Backbone, tmp_path: Path) -> None:
    """Autocast and rounded products gave other logits without a word, and the other settings ended inside PyTorch."""

    def logits(frozen: Backbone) -> Tensor:
        model = adapted(frozen, "lora")
        model.save(tmp_path / str(len(list(tmp_path.iterdir()))))
        return bolt.load_model(tmp_path / "0", frozen).logits(IMAGES)

    expected, tiny = logits(backbone), Path("grids/backbones/tiny-clip.json")
    with setting():
        assert torch.equal(logits(backbone).cpu(), expected)
        loaded = bolt.load_backbone(tiny, tiny.with_suffix(".safetensors"), quick_gelu=False)
        head = loaded.zero_shot_head(NAMES, ["a photo of a {}."])
    again = bolt.load_backbone(tiny, tiny.with_suffix(".safetensors"), quick_gelu=False)
    assert loaded.digest == again.digest
    assert torch.equal(head, again.zero_shot_head(NAMES, ["a photo of a {}."]))
    assert adapted(loaded, "lora").logits(IMAGES).shape == (12, 3)


@pytest.mark.parametrize(
    ("images", "labels", "arguments", "message"),
    [
        (IMAGES, LABELS[1:], {}, "12 images and 11 labels"),
        (IMAGES, [3, *LABELS[1:]], {}, "labels are 0 to 2"),
        (IMAGES, [[1, 2], [1], *LABELS[2:]], {}, "labels are whole numbers"),
        (IMAGES, [0.9, *LABELS[1:]], {}, "labels are whole numbers"),
        (IMAGES, [NAMES[label] for label in LABELS], {}, "labels are whole numbers"),
        (IMAGES, np.eye(3)[LABELS], {}, "labels are whole numbers"),
        (IMAGES, LABELS, {"prompts": {name: f"a {name}" for name in NAMES}}, r"a list, such as \['a red things'\]"),
        (IMAGES, LABELS, {"prompts": ["a {}.", 1]}, "texts in a list, not 1"),
        (IMAGES, LABELS, {"prompts": {"a {}.", "the {}."}}, "texts in a list"),
        (IMAGES, LABELS, {"precision": "float16"}, "not 'float16'"),
        (IMAGES, LABELS, {"mirror": "no"}, "mirror is True or False, not 'no'"),
        (IMAGES[:8], LABELS[:8], {}, "class 2 has no image"),
        (IMAGES, LABELS, {"method": "bolt"}, "sources=bolt.load_sources"),
        (IMAGES, LABELS, {"method": "layer_norm"}, "only to images without labels"),
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

    labels = pd.Series(LABELS, index=range(5, 17), dtype=object)
    model = bolt.adapt(backbone, IMAGES, labels, np.array(NAMES), method="tip_adapter")  # type: ignore[arg-type]
    expected = bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="tip_adapter")
    assert torch.equal(model.logits(IMAGES), expected.logits(IMAGES))
    assert model.about.class_names == tuple(NAMES)
    for names in ("rgb", dict.fromkeys(range(3), "red"), {*NAMES}):
        with pytest.raises(TypeError, match="class_names is a list"):
            bolt.adapt(backbone, IMAGES, LABELS, names, method="zero_shot")  # type: ignore[arg-type]
    as_keys = bolt.adapt(backbone, IMAGES, LABELS, dict.fromkeys(NAMES).keys(), method="tip_adapter")
    assert torch.equal(as_keys.logits(IMAGES), expected.logits(IMAGES))
    by_number: dict[Any, list[str]] = {1: ["a one"], 2: ["a two"], 3: ["a three"]}
    assert bolt.adapt(backbone, IMAGES, LABELS, [*by_number], method="zero_shot", prompts=by_number)
    fit = partial(bolt.adapt, backbone, IMAGES, LABELS, method="clipfit", epochs=1)
    made = fit(iter(NAMES), seed=torch.tensor(1), prompts=(f"a {each} of {{}}." for each in ("photo", "sketch")))
    expected = fit(NAMES, prompts=["a photo of {}.", "a sketch of {}."])
    assert torch.equal(made.logits(IMAGES), expected.logits(IMAGES))
    with pytest.raises(TypeError, match="whose order counts, not a set"):
        bolt.adapt(backbone, {"a.png", "b.png"}, [0, 1], NAMES, method="zero_shot")  # type: ignore[arg-type]
    for one in (b"red", ("red", "crimson"), np.array(["red"]), Path("train/red")):
        with pytest.raises(TypeError, match=r"the name of class 1 is .* must be one text"):
            bolt.adapt(backbone, IMAGES, LABELS, [NAMES[0], one, NAMES[2]], method="zero_shot")  # type: ignore[list-item]
    for nothing in ("", " ", None, float("nan")):
        with pytest.raises(ValueError, match="class 1 has no name"):
            bolt.adapt(backbone, IMAGES, LABELS, [NAMES[0], nothing, NAMES[2]], method="zero_shot")  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"seed": 1.0}, "seed is a whole number"),
        ({"seed": True}, "seed is a whole number"),
        ({"name": None}, "name is a text"),
        ({"method": METHODS["lora"]}, r"method is a name in bolt\.METHODS"),
        ({"reading": {"bands": (1, 2, 3)}}, "reading is a bolt"),
        ({"backbone": "ViT-B-32"}, "backbone is made by bolt"),
    ],
)
def test_an_argument_of_another_type_is_named(argument: dict[str, Any], message: str, backbone: Backbone) -> None:
    arguments = {"backbone": backbone, "images": IMAGES, "labels": LABELS, "class_names": NAMES, **argument}
    with pytest.raises(TypeError, match=message):
        bolt.adapt(**arguments)


def test_a_folder_of_class_folders_gives_images_labels_and_words(tmp_path: Path) -> None:
    for label, name in enumerate(("red_things", "green-things")):
        (tmp_path / name).mkdir()
        for index in range(2):
            IMAGES[4 * label].save(tmp_path / name / f"{index}.png")
    (tmp_path / "red_things" / "notes.txt").write_text("not an image")
    with pytest.warns(UserWarning, match="1 file without an image suffix"):
        images, labels, names = bolt.read_folder(tmp_path)
    assert names == ["green things", "red things"]
    assert labels == [0, 0, 1, 1]
    assert np.array_equal(np.asarray(images[2]), np.asarray(IMAGES[0]))
    (tmp_path / "red_things" / "notes.txt").unlink()
    with pytest.raises(FileNotFoundError, match="no sub-folder with images"):
        bolt.read_folder(tmp_path / "red_things")
    shutil.copytree(tmp_path / "red_things", tmp_path / "all" / "red_things")
    with pytest.warns(UserWarning, match="only one class, 'red_things'"):
        bolt.read_folder(tmp_path / "all")
    shutil.rmtree(tmp_path / "all")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        bolt.read_folder(tmp_path / "nowhere")
    (tmp_path / "red_things" / "broken.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"broken\.png"):
        bolt.read_folder(tmp_path)


def test_images_are_read_in_two_passes(backbone: Backbone) -> None:
    """Some sequences decode an image for each access: one pass checks them all before any is kept, one keeps them."""
    passes = 0

    class Images(list[Image.Image]):
        def __iter__(self) -> Iterator[Image.Image]:
            nonlocal passes
            passes += 1
            return super().__iter__()

    bolt.adapt(backbone, Images(IMAGES), LABELS, NAMES, method="zero_shot")
    assert passes == 2


def test_classes_with_equal_words_are_named(backbone: Backbone) -> None:
    with pytest.warns(UserWarning, match="'red things' = 'red things'"):
        bolt.adapt(backbone, IMAGES, LABELS, ["red things", "green things", "red things"], method="zero_shot")


@pytest.mark.parametrize("names", [["red_things", "green things", "blue things"], ["0", "1", "2"]])
def test_class_names_that_are_no_words_are_named(names: list[str], backbone: Backbone) -> None:
    with pytest.warns(UserWarning, match=f"do not describe an image: '?{names[0]}"):
        bolt.adapt(backbone, IMAGES, LABELS, names, method="zero_shot")
    sentences = {name: ["a photo."] for name in names}
    with pytest.warns(UserWarning, match="equal text embeddings") as noted:  # the names themselves stand in no text
        bolt.adapt(backbone, IMAGES, LABELS, names, method="zero_shot", prompts=sentences)
    assert not any("describe an image" in str(each.message) for each in noted)


def test_class_names_in_another_order_than_the_labels_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    """``os.listdir`` has another order than torchvision's ``ImageFolder``; classes got each other's words."""
    paths = [tmp_path / NAMES[label].replace(" ", "_") / f"{index}.png" for index, label in enumerate(LABELS)]
    for image, path in zip(IMAGES, paths, strict=True):
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    swapped = [NAMES[1], NAMES[0], NAMES[2]]
    for images in (paths, [Image.open(path) for path in paths]):
        assert bolt.adapt(backbone, images, LABELS, NAMES, method="zero_shot")
        with pytest.raises(ValueError, match="class_names must have the order of the labels"):
            bolt.adapt(backbone, images, LABELS, swapped, method="zero_shot")
    corrected = [1, *LABELS[1:]]  # the label of an image may differ from its folder
    assert bolt.adapt(backbone, paths, corrected, NAMES, method="zero_shot")
    with pytest.raises(ValueError, match=r"0\.png has two labels, 'red things' and 'blue things'"):
        bolt.adapt(backbone, [*paths, paths[0]], [*LABELS, 2], NAMES, method="zero_shot")
    assert bolt.adapt(backbone, [*paths, paths[0]], [*LABELS, 0], NAMES, method="zero_shot")


def test_texts_that_are_too_long_are_named(backbone: Backbone) -> None:
    """The text tower of the tests reads 15 letters."""
    prompts = {"red things": ["red", "a photo of red things"], "green things": ["green"], "blue things": ["blue"]}
    with pytest.warns(UserWarning, match="does not read the end of 1 of the texts.*'a photo of red things'"):
        bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="zero_shot", prompts=prompts)


def test_a_method_of_single_images_makes_no_model(backbone: Backbone, sources: CheckpointSources) -> None:
    with pytest.raises(ValueError, match="each image separately"):
        adapted(backbone, "zero", sources)


def test_of_classes_with_equal_names_the_highest_score_is_kept(backbone: Backbone) -> None:
    model = adapted(backbone, "zero_shot")
    model = replace(model, about=replace(model.about, class_names=("one", "two", "two")))
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    probabilities = model.logits(images).softmax(dim=-1)
    for prediction, row in zip(model.predict(images), probabilities.tolist(), strict=True):
        assert prediction.scores == {"one": row[0], "two": max(row[1:])}
        assert prediction.scores[prediction.label] == prediction.score


def test_a_model_that_gives_nan_predicts_no_label(backbone: Backbone) -> None:
    model = adapted(backbone, "zero_shot")
    model = replace(model, classifier=CosineClassifier(torch.full((3, 16), torch.nan), 1.0))
    with pytest.raises(NonFiniteLogits, match="NaN"):
        model.predict(IMAGES)


def test_a_plain_function_as_classifier_can_be_measured_and_not_kept(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="Classifier"):
        Model.from_adapted(backbone, Adapted(classify=lambda features: features), NAMES)
    with pytest.raises(ValueError, match="2 class names for a classifier of 3 classes"):
        Model.from_adapted(backbone, Adapted(adapted(backbone, "zero_shot").classifier), NAMES[:2])
