"""MaPLe against the official code, and the deep prompts of both towers."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.common.prompts import TrainedText
from bolt.methods.maple import MapleSettings, adapt, initial_maps, trainable
from bolt.task.task import Task
from bolt.training.adaptation import Trainable
from tests.bolt.methods.third_vectors import SMALL_IMAGES, chirp, exact, names, small_task, trained_text, vector
from tests.helpers.towers import make_task

SMALL = MapleSettings(depth=2, min_steps=1)
QUICK = MapleSettings(initial_words="a b", min_steps=1)


def official_names(weights_JVW: Tensor, biases_JV: Tensor, text_JKW: Tensor) -> dict[str, Tensor]:
    """Return the trained tensors by the official code's names."""
    return {
        "compound_prompt_projections.0.bias": biases_JV[1],
        "compound_prompt_projections.0.weight": weights_JVW[1],
        "compound_prompts_text.0": text_JKW[1],
        "proj.bias": biases_JV[0],
        "proj.weight": weights_JVW[0],
        "ctx": text_JKW[0],
    }


def at_the_official_start(task: Task, settings: MapleSettings) -> tuple[Trainable, TrainedText]:
    model, text = trainable(task, settings)
    tensors = official_names(*(tensor.data for tensor in model.parameters))
    del tensors["ctx"]  # starts at the words
    for number, tensor in enumerate(tensors.values(), 100):
        tensor.copy_(chirp(tuple(tensor.shape), number, 0.1))
    return model, text


def test_start_and_gradients_are_the_official_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = at_the_official_start(small_task(monkeypatch, {}), SMALL)
    assert sum(tensor.numel() for tensor in model.parameters) == int(vector("maple/parameters"))
    assert model.classify is not None
    features, head_CD = model.encode(SMALL_IMAGES), text.head()
    exact(F.normalize(features, dim=-1).detach(), "maple/image_start")
    exact(head_CD.detach(), "maple/text_start")
    exact(F.normalize(model.current()(SMALL_IMAGES), dim=-1), "maple/image_start")
    F.cross_entropy(model.classify(features), torch.arange(4)).backward()
    gradients = official_names(*(tensor.grad for tensor in model.parameters if tensor.grad is not None))
    assert sorted(gradients) == sorted(names("maple/grad_norm/"))
    for name, gradient in gradients.items():
        exact(gradient.norm(), f"maple/grad_norm/{name}")
    for name in names("maple/grad/"):
        exact(gradients[name], f"maple/grad/{name}")


def test_the_training_follows_the_official_code(monkeypatch: pytest.MonkeyPatch) -> None:
    curve: dict[str, list[float]] = {}
    task = small_task(monkeypatch, curve)
    monkeypatch.setattr("bolt.methods.maple.trainable", at_the_official_start)
    adapted = adapt(task, SMALL)
    for name, values in curve.items():
        exact(torch.tensor(values), f"maple/{name}")
    assert adapted.tower is not None
    assert adapted.embed_classes is not None
    (text_JKW,) = trained_text(adapted).parameters
    exact(text_JKW[0].detach(), "maple/ctx_after")
    exact(text_JKW[1].detach(), "maple/compound_text_after")
    exact(adapted.embed_classes(task.class_text.class_names), "maple/text_after")
    exact(F.normalize(adapted.tower(SMALL_IMAGES), dim=-1), "maple/image_after")


def test_all_maps_but_the_first_start_alike_and_as_linear_layers_do(backbone: Backbone) -> None:
    task = make_task(backbone)
    weights_JVW, biases_JV = initial_maps(task, torch.zeros(4, 2, 16))
    assert torch.equal(weights_JVW[1], weights_JVW[3])
    assert torch.equal(biases_JV[1], biases_JV[2])
    assert not torch.equal(weights_JVW[0], weights_JVW[1])
    assert 0.9 / 4 < weights_JVW.abs().max() <= 1 / 4
    assert biases_JV.abs().max() <= 1 / 4


def test_a_small_support_trains_for_more_epochs() -> None:
    assert MapleSettings().epochs_for(160) == 5
    assert MapleSettings().epochs_for(1600) == 5
    assert MapleSettings().epochs_for(10) == 67  # of three batches


def test_both_towers_are_trained(backbone: Backbone) -> None:
    adapted = adapt(make_task(backbone), QUICK)
    assert adapted.tower.prompts.shape == (1, 2, 32)  # the text tower has one block
    assert adapted.trainable_parameters == 2 * 16 + 32 * 16 + 32


def test_many_words_have_the_same_gradients(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for at_once in (256, 2):
        monkeypatch.setattr("bolt.clip.text_tower.PROMPTS_AT_ONCE", at_once)
        _, text = trainable(make_task(backbone), QUICK)
        text.head()[:, 0].sum().backward()
        gradients.append(text.parameters[0].grad)
    torch.testing.assert_close(*gradients)


def test_words_that_are_too_few_are_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="initial_words has 1 tokens, but tokens asks for 2"):
        trainable(make_task(backbone), MapleSettings(initial_words="ab"))
