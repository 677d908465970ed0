"""CLIPFit against the official code."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.tensor_names import layer_norm_names
from bolt.clip.text_tower import TextTower
from bolt.clip.tower import ImageTower
from bolt.clip.tower_shape import TextShape
from bolt.methods.clipfit import ClipFitSettings, adapt, trainable, with_trained_biases
from bolt.methods.common.prompts import TrainedText
from tests.bolt.methods.third_vectors import SMALL_IMAGES, exact, names, small_task, trained_text, vector
from tests.helpers.towers import VIT_B32

SMALL = ClipFitSettings(epochs=5, batch_size=4)


def official_names(tower: ImageTower, text: TrainedText) -> dict[str, Tensor]:
    """Return the trained tensors by the official code's names."""
    own, paths = dict(tower.named_parameters()), tower.tensor_paths()
    norms = layer_norm_names(tower.state_dict_open_clip())
    found: dict[str, Tensor] = {f"image_encoder.{name}": own[paths[name]] for name in norms}
    for number, block in enumerate(text.tower.blocks):
        bias = block.get_parameter("c_proj.bias")
        found[f"text_encoder.transformer.resblocks.{number}.mlp.c_proj.bias"] = bias
    return found


def test_start_and_gradients_are_the_official_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = trainable(small_task(monkeypatch, {}), SMALL)
    assert isinstance(model.encode, ImageTower)
    tensors = official_names(model.encode, text)
    assert sorted(tensors) == sorted(names("clipfit/grad_norm/"))
    assert sum(tensor.numel() for tensor in model.parameters) == int(vector("clipfit/parameters"))
    exact(text.classifier()(model.encode(SMALL_IMAGES)).detach(), "clipfit/logits_start")
    assert model.loss is not None
    model.loss(SMALL_IMAGES, torch.arange(4)).backward()
    for name, tensor in tensors.items():
        exact(tensor.grad.norm(), f"clipfit/grad_norm/{name}")


def test_the_training_follows_the_official_code(monkeypatch: pytest.MonkeyPatch) -> None:
    curve: dict[str, list[float]] = {}
    task = small_task(monkeypatch, curve)
    adapted = adapt(task, SMALL)
    for name, values in curve.items():
        exact(torch.tensor(values), f"clipfit/{name}")
    assert adapted.tower is not None
    assert adapted.embed_classes is not None
    tensors = official_names(adapted.tower, trained_text(adapted))
    assert sorted(tensors) == sorted(names("clipfit/after/"))
    for name, tensor in tensors.items():
        exact(tensor.detach(), f"clipfit/after/{name}")
    exact(adapted.classify(adapted.tower(SMALL_IMAGES)), "clipfit/logits_after")
    frozen_CD = TrainedText(task, task.backbone.text_tower).head()
    head_CD = adapted.embed_classes(task.class_text.class_names)
    exact(1 - F.cosine_similarity(head_CD, frozen_CD, dim=-1).mean(), "clipfit/distance_after")


def test_it_trains_46080_numbers_in_vit_b() -> None:
    with torch.device("meta"):
        state = ImageTower(VIT_B32).state_dict_open_clip()
        text = TextTower(TextShape(77, 49408, 512, 12, 8, 2048, 512, "quick_gelu")).requires_grad_(False)
        biases = [tensor for tensor in with_trained_biases(text).parameters() if tensor.requires_grad]
    assert sum(state[name].numel() for name in layer_norm_names(state)) == 26 * 1536
    assert sum(tensor.numel() for tensor in biases) == 12 * 512
