"""Preprocessing, the zero-shot head, and the tensor counts of real architectures."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import transforms

from bolt.clip.backbone import Backbone, average_prompts
from bolt.clip.tensor_names import layer_norm_names, matrix_names
from bolt.clip.tower_shape import UnsupportedTower
from bolt.spectral.directions import directions_per_source
from tests.helpers.towers import random_backbone, random_clip, tokenize

REAL = ("ViT-B-32", "ViT-B-16", "ViT-L-14")


def named_tensors(architecture: str) -> dict[str, torch.Tensor]:
    """Return the parameters of a real CLIP except those of the text blocks, as tensors without values."""
    config = open_clip.get_model_config(architecture)
    with torch.device("meta"):
        model = open_clip.CLIP(**config)
    return {name: tensor for name, tensor in model.named_parameters() if not name.startswith("transformer.")}


@pytest.mark.parametrize(
    ("architecture", "tensors", "two_dimensional", "matrices", "layer_norm"),
    [("ViT-B-32", 158, 53, 49, 39_936), ("ViT-B-16", 158, 53, 49, 39_936), ("ViT-L-14", 302, 101, 97, 102_400)],
)
def test_tensor_counts(architecture: str, tensors: int, two_dimensional: int, matrices: int, layer_norm: int) -> None:
    """Reference vector TV17."""
    state = named_tensors(architecture)
    assert (len(state), sum(tensor.ndim == 2 for tensor in state.values())) == (tensors, two_dimensional)
    assert len(matrix_names(state)) == matrices
    assert sum(state[name].numel() for name in layer_norm_names(state)) == layer_norm
    visual = {name.removeprefix("visual."): t for name, t in state.items() if name.startswith("visual.")}
    assert ["visual." + name for name in matrix_names(visual)] == matrix_names(state)
    assert ["visual." + name for name in layer_norm_names(visual)] == layer_norm_names(state)


@pytest.mark.parametrize(
    ("architecture", "sources", "blocks_only", "with_projection"),
    [
        ("ViT-B-32", 14, 8_064, 8_232), ("ViT-B-32", 16, 9_216, 9_408), ("ViT-B-32", 17, 9_792, 9_996),
        ("ViT-L-14", 14, 16_128, 16_296), ("ViT-L-14", 16, 18_432, 18_624),
    ],
)  # fmt: skip
def test_coefficient_counts_are_published(
    architecture: str, sources: int, blocks_only: int, with_projection: int
) -> None:
    state = named_tensors(architecture)
    counts = {
        name: sources * directions_per_source(12, min(state[name].shape), sources) for name in matrix_names(state)
    }
    assert sum(counts.values()) == with_projection
    assert sum(count for name, count in counts.items() if name != "visual.proj") == blocks_only


def test_the_text_side_is_never_a_matrix() -> None:
    state = dict(random_clip().named_parameters())
    assert all(name.startswith("visual.") for name in matrix_names(state))
    assert len(matrix_names(state)) == 2 * 4 + 1


def test_normalise_equals_clips_preprocessing(backbone: Backbone) -> None:
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    reference = transforms.Compose([transforms.ToTensor(), transforms.Normalize(backbone.mean, backbone.std)])
    expected = torch.stack([reference(image.permute(1, 2, 0).numpy()) for image in pixels])
    assert torch.equal(backbone.normalise(pixels), expected)
    assert pixels.dtype == torch.uint8


def test_pixels_from_0_to_1_are_refused_and_not_changed(backbone: Backbone) -> None:
    pixels = torch.rand(2, 3, 32, 32)
    before = pixels.clone()
    with pytest.raises(TypeError, match="uint8"):
        backbone.encode_images(pixels)
    assert torch.equal(pixels, before)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        backbone.encode_images(pixels.to(torch.uint8), batch_size=-1)


@pytest.mark.parametrize("shape", [(2, 3, 16, 64), (2, 3, 35, 35), (3, 32, 32), (2, 32, 32, 3), (2, 1, 32, 32)])
def test_pixels_of_another_form_are_refused(shape: tuple[int, ...], backbone: Backbone) -> None:
    """The first two have as many patches as an image of the tower, and got features."""
    with pytest.raises(TypeError, match=r"uint8 \(B, 3, 32, 32\), from 0 to 255, not Tensor torch\.uint8 \("):
        backbone.encode_images(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"torch\.bool"):
        backbone.encode_images(torch.ones(2, 3, 32, 32, dtype=torch.bool))


def test_features_are_open_clips_and_the_model_is_untouched() -> None:
    model = random_clip()
    model.visual.image_mean, model.visual.image_std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    backbone = Backbone.from_open_clip(model, tokenize, "tiny")
    assert not any(parameter.requires_grad for parameter in backbone.tower.parameters())
    assert not backbone.tower.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert backbone.logit_scale == pytest.approx(1 / 0.07)
    assert (backbone.activation, backbone.image_size, backbone.embed_dim) == ("gelu", 32, 16)
    assert backbone.mean == (0.5, 0.5, 0.5)
    assert random_backbone().mean == open_clip.OPENAI_DATASET_MEAN
    pixels = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    features = backbone.encode_images(pixels, batch_size=3)
    assert torch.equal(features, backbone.encode_images(pixels, batch_size=3))
    with torch.no_grad():
        torch.testing.assert_close(features, model.encode_image(backbone.normalise(pixels)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features, backbone.encode_images(pixels), rtol=1e-5, atol=1e-5)
    model.visual.conv1.weight.data.zero_()  # as training would, in place
    assert torch.equal(features, backbone.encode_images(pixels, batch_size=3))


def test_prompts_are_normalised_before_and_after_the_mean() -> None:
    """The norm of a prompt's embedding does not matter, and the mean is a unit vector."""
    prompts = torch.tensor([[[3.0, 0.0], [0.0, 40.0]]])
    torch.testing.assert_close(average_prompts(prompts), torch.tensor([[0.5**0.5, 0.5**0.5]]))


def test_zero_shot_head(backbone: Backbone) -> None:
    """Reference vector TV16."""
    names, templates = ["cat", "d{o}g"], ["a {}.", "the {} of {}"]
    head = backbone.zero_shot_head(names, templates)
    for row, name in zip(head, names, strict=True):
        prompts = backbone.encode_prompts([template.replace("{}", name) for template in templates])
        torch.testing.assert_close(row, F.normalize(F.normalize(prompts, dim=-1).mean(dim=0), dim=0))
    torch.testing.assert_close(head.norm(dim=-1), torch.ones(2))
    as_functions: Any = [lambda name: f"a {name}.", lambda name: f"the {name} of {name}"]  # as open_clip has templates
    assert torch.equal(backbone.zero_shot_head(names, as_functions), head)


@pytest.mark.parametrize(
    ("names", "templates", "complaint"),
    [([], ["{}"], "at least one"), (["cat"], [], "at least one"), (["cat"], ["a"], "no {}"), ("cat", ["{}"], "class"),
     (["owl"], [lambda name: f"an {name}" if name[0] in "aeiou" else f"a {name}"], "must be texts in a list, not <f")],
)  # fmt: skip
def test_bad_prompts_are_refused(backbone: Backbone, names: Any, templates: list[Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        backbone.zero_shot_head(names, templates)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda clip: clip.half(), "float16 weights.*float"),
        (lambda clip: clip.logit_scale.data.exp_(), "logit_scale of tiny is 14.28.*logarithm"),
        (lambda clip: clip.logit_scale.data.neg_(), "logit_scale of tiny is -2.6"),
        (lambda clip: clip.visual.ln_post.register_forward_hook(lambda *each: -each[2]), "does not compute what"),
        (lambda clip: setattr(clip.visual.transformer.resblocks[1].mlp, "gelu", nn.ReLU()), "does not compute what"),
    ],
)
def test_a_clip_that_would_give_errors_or_equal_probabilities_is_refused(
    change: Callable[[open_clip.CLIP], Any], complaint: str
) -> None:
    clip = random_clip()
    change(clip)
    with pytest.raises(UnsupportedTower, match=complaint):
        Backbone.from_open_clip(clip, tokenize, "tiny")


def test_what_is_no_model_of_open_clip_is_named() -> None:
    for given in ((random_clip(), None, None), nn.DataParallel(random_clip()), random_clip().visual):
        with pytest.raises(UnsupportedTower, match=rf"tiny is a {type(given).__name__}, no model of open_clip"):
            Backbone.from_open_clip(given, tokenize, "tiny")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"mean": [123, 116, 103]}, "its mean"), ({"std": np.zeros(3)}, "its std"), ({"resize": "crop"}, "resize_mode")],
)
def test_preprocessing_that_no_clip_has_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Backbone.from_open_clip(random_clip(), tokenize, "tiny", **wrong)
    half: Any = np.full(3, 0.5)
    with_array = Backbone.from_open_clip(random_clip(), tokenize, "tiny", mean=half)
    assert with_array.mean == (0.5, 0.5, 0.5)


def test_the_number_formats_of_the_text_side_and_of_the_scale_are_free() -> None:
    clip = random_clip()
    clip.logit_scale = nn.Parameter(torch.tensor(math.log(1000), dtype=torch.float64))
    clip.extra = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
    assert Backbone.from_open_clip(clip, tokenize, "tiny").logit_scale == pytest.approx(1000)
    clip.logit_scale = nn.Parameter(torch.tensor(1000.0).log())
    assert Backbone.from_open_clip(clip, tokenize, "tiny").logit_scale == pytest.approx(1000)


def test_a_backbone_reaches_another_process(backbone: Backbone) -> None:
    again = pickle.loads(pickle.dumps(backbone))
    assert again.digest == backbone.digest
    assert torch.equal(again.encode_prompts(["a cat"]), backbone.encode_prompts(["a cat"]))


def test_a_backbone_moves_to_devices_only() -> None:
    with pytest.raises(TypeError):
        random_backbone().to(torch.float16)  # type: ignore[arg-type]


def test_prompts_whose_end_is_cut_off() -> None:
    fits = ["", "a", "123456789 12345", "12345678 éééé"]  # this tokenizer takes 15 characters
    cut = ["123456789 12345 7", "a" * 30 + " b", "a-" * 9, "猫" * 16]
    assert random_backbone().cut_off([*fits, *cut]) == cut
    strips = Backbone.from_open_clip(random_clip(), lambda given: tokenize(text.rstrip(" .") for text in given), "tiny")
    assert strips.cut_off(["123456 890123 ", "12345 7890 ...", *cut]) == cut
