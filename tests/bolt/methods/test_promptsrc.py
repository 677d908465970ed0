"""PromptSRC against the official code."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.prompts import TrainedText
from bolt.methods.promptsrc import PromptSrcSettings, adapt, epoch_weights, losses, trainable
from bolt.task.task import Task
from bolt.training.adaptation import Trainable
from tests.bolt.methods.third_vectors import SMALL_IMAGES, chirp, exact, names, small_task, vector
from tests.helpers.towers import make_task

SMALL = PromptSrcSettings(depth=2, epochs=6, average_mean=4 / 6, average_deviation=1.5 / 6)
QUICK = PromptSrcSettings(tokens=2, initial_words="a b", epochs=4)


def official_names(image_JKW: Tensor, text_JKW: Tensor) -> dict[str, Tensor]:
    """Return the tokens by the official code's names."""
    return {
        "ctx": text_JKW[0],
        "image_encoder.VPT": image_JKW[0],
        "image_encoder.transformer.resblocks.1.VPT_shallow": image_JKW[1],
        "text_encoder.transformer.resblocks.1.VPT_shallow": text_JKW[1],
    }


def at_the_official_start(task: Task, settings: PromptSrcSettings) -> tuple[Trainable, TrainedText]:
    model, text = trainable(task, settings)
    tensors = official_names(*(tensor.data for tensor in model.parameters))
    del tensors["ctx"]  # starts at the words
    for number, tensor in enumerate(tensors.values(), 120):
        tensor.copy_(chirp((4, 32), number, 0.1))
    return model, text


def small(monkeypatch: pytest.MonkeyPatch, curve: dict[str, list[float]]) -> Task:
    return small_task(monkeypatch, curve, vector("promptsrc/teacher_text").double())


def test_start_and_gradients_are_the_official_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    task, labels = small(monkeypatch, {}), torch.arange(4)
    model, text = at_the_official_start(task, SMALL)
    frozen = F.normalize(task.backbone.tower(SMALL_IMAGES), dim=-1)
    exact(frozen, "promptsrc/teacher_image")
    templates = ("a photo of a {}.", "photo of {}.", "a {}.")
    raw_CD = torch.stack([raw_embeddings(task, template) for template in templates]).mean(dim=0)
    exact(F.normalize(raw_CD, dim=-1), "promptsrc/teacher_text")
    unit, head_CD = F.normalize(model.encode(SMALL_IMAGES), dim=-1), text.head()
    exact(unit.detach(), "promptsrc/image_start")
    exact(head_CD.detach(), "promptsrc/text_start")
    terms = losses(task, SMALL, unit, head_CD, frozen, labels)
    for name, term in zip(("ce", "text", "image", "logits"), terms, strict=True):
        exact(term.detach(), f"promptsrc/loss_start_{name}")
    assert model.loss is not None
    total = model.loss(SMALL_IMAGES, labels)
    torch.testing.assert_close(total, torch.stack(terms).sum())
    total.backward()
    gradients = official_names(*(tensor.grad for tensor in model.parameters if tensor.grad is not None))
    assert sorted(gradients) == sorted(names("promptsrc/grad_norm/"))
    for name, gradient in gradients.items():
        exact(gradient.norm(), f"promptsrc/grad_norm/{name}")


def raw_embeddings(task: Task, template: str) -> Tensor:
    tower, tokens = (
        task.backbone.text_tower,
        task.backbone.tokenize([template.replace("{}", name) for name in task.class_text.class_names]),
    )
    return tower(tower.embed(tokens), tokens.argmax(dim=-1))


def test_the_training_and_the_average_follow_the_official_code(monkeypatch: pytest.MonkeyPatch) -> None:
    curve: dict[str, list[float]] = {}
    made: list[Trainable] = []
    last: list[Tensor] = []

    def start(task: Task, settings: PromptSrcSettings) -> tuple[Trainable, TrainedText]:
        model, text = at_the_official_start(task, settings)
        made.append(model)
        return model, text

    monkeypatch.setattr("bolt.methods.promptsrc.trainable", start)
    task = small(monkeypatch, curve)
    report = task.report

    def keep(epoch: int, row: Mapping[str, float]) -> None:
        last[:] = [tensor.detach().clone() for tensor in made[0].parameters]
        report(epoch, row)

    adapted = adapt(replace(task, report=keep), SMALL)
    for name, values in curve.items():
        exact(torch.tensor(values), f"promptsrc/{name}")
    for name, tensor in official_names(*last).items():
        exact(tensor, f"promptsrc/last/{name}")
    for name, tensor in official_names(*made[0].parameters).items():
        exact(tensor.detach(), f"promptsrc/gpa/{name}")
    exact(epoch_weights(SMALL), "promptsrc/gpa_weights")
    assert adapted.tower is not None
    exact(adapted.classify(adapted.tower(SMALL_IMAGES)), "promptsrc/logits_gpa")


def test_the_weights_of_the_epochs() -> None:
    for settings in (PromptSrcSettings(), QUICK):
        weights_E = epoch_weights(settings)
        assert len(weights_E) == settings.epochs
        assert float(weights_E.sum()) == pytest.approx(1)
    fewshot_E = epoch_weights(PromptSrcSettings())
    assert int(fewshot_E.argmax()) == 30 - 1
    assert float(fewshot_E[0] / fewshot_E[29]) == pytest.approx(2.718281828 ** (-0.5 * (29 / 30) ** 2))
    base_to_new = METHODS["promptsrc"].configure({"preset": "base_to_new"})
    assert float(epoch_weights(base_to_new)[12:17].sum()) > 0.98  # epochs 13 to 17 hold 99 per cent


def test_the_result_is_no_epochs_tokens(backbone: Backbone) -> None:
    task = make_task(backbone)
    sharp = replace(QUICK, average_mean=1.0, average_deviation=0.01)  # the last epoch alone
    one, other = (adapt(task, settings).tower.prompts.detach() for settings in (QUICK, sharp))
    assert one.shape == (1, 2, 32)
    assert not torch.equal(one, other)
