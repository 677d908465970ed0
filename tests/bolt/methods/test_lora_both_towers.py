"""LoRA on both towers: CLIP-LoRA as published; LoRA on the image tower alone is unchanged."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.clip.text_tower import TextTower
from bolt.clip.tower_shape import TextShape
from bolt.methods import METHODS
from bolt.methods.base import Method
from bolt.methods.common.adapters import attach_to_tower
from bolt.methods.lora import AdaptedText
from bolt.protocol import PUBLISHED
from bolt.task.classifiers import CosineClassifier
from tests.helpers.adapting import adapt, classifier, with_curve
from tests.helpers.towers import make_task

LORA = METHODS["lora"]
QUICK: dict[str, Any] = {"preset": "clip_lora_both", "epochs": 3, "batch_size": 8}


@pytest.mark.parametrize(
    ("width", "heads", "embed_dim", "count"), [(512, 8, 512, 73_728), (768, 12, 768, 110_592)], ids=["vit_b", "vit_l"]
)
def test_clip_lora_trains_as_many_text_numbers_as_published(width: int, heads: int, embed_dim: int, count: int) -> None:
    shape = TextShape(77, 49408, width, 12, heads, 4 * width, embed_dim, "quick_gelu")
    with torch.device("meta"):
        tower = TextTower(shape).requires_grad_(False)
        attach_to_tower(tower, LORA.configure(QUICK), False, "test")
    assert sum(tensor.numel() for tensor in tower.parameters() if tensor.requires_grad) == count


def test_the_untrained_head_is_the_first_prompt_of_the_frozen_tower(backbone: Backbone) -> None:
    task = make_task(backbone)
    head_CD = AdaptedText(task, LORA.configure(QUICK)).classifier().head_CD
    first = backbone.zero_shot_head(task.class_text.class_names, task.class_text.templates[:1])
    torch.testing.assert_close(head_CD, first)


@pytest.mark.parametrize("method", [LORA, METHODS["dora"]], ids=lambda method: method.name)
def test_both_towers_are_trained(method: Method, backbone: Backbone) -> None:
    task, losses = with_curve(make_task(backbone))
    settings = method.configure({**QUICK, "epochs": 12, "learning_rate": 1e-2})
    adapted = method.adapt(task, settings)
    assert losses[-1] < 0.8 * losses[0]
    image_only = method.adapt(task, replace(settings, towers="image", epochs=1))
    shape, names = backbone.text_tower.shape, task.class_text.class_names
    per_matrix = 2 * 2 * shape.width + (shape.width if method.name == "dora" else 0)
    assert adapted.trainable_parameters - image_only.trainable_parameters == 3 * shape.layers * per_matrix
    head_CD = classifier(adapted, CosineClassifier).head_CD
    assert (head_CD - backbone.zero_shot_head(names, task.class_text.templates[:1])).abs().max() > 0.01
    assert adapted.embed_classes is not None
    torch.testing.assert_close(adapted.embed_classes(names), head_CD)


def test_text_dropout_is_keyed_and_absent_in_the_result(backbone: Backbone) -> None:
    one, other = (
        classifier(adapt("lora", make_task(backbone), **QUICK, learning_rate=1e-2), CosineClassifier).head_CD
        for _ in range(2)
    )
    assert torch.equal(one, other)
    text = AdaptedText(make_task(backbone), LORA.configure({**QUICK, "dropout": 0.5}))
    for tensor in text.parameters:
        torch.nn.init.normal_(tensor, std=0.3, generator=torch.Generator().manual_seed(1))
    features = torch.ones(1, backbone.embed_dim)
    assert not torch.equal(text.classify(features), text.classify(features))
    assert torch.equal(text.classifier()(features), text.classifier()(features))


def test_the_image_tower_alone_keeps_its_identity_and_reads_no_class_names(backbone: Backbone) -> None:
    assert "towers" not in dict(LORA.identity_of(LORA.configure({"preset": "clip_lora"})))
    assert dict(LORA.identity_of(LORA.configure(QUICK)))["towers"] == "both"
    assert LORA.trains_text(LORA.configure(QUICK))
    assert not LORA.trains_text(LORA.configure({"preset": "clip_lora"}))
    task = replace(make_task(backbone), text=None)
    LORA.adapt(task, LORA.configure(LORA.test_settings))
    with pytest.raises(ValueError, match="class names"):
        LORA.adapt(task, LORA.configure(QUICK))


def test_the_published_protocol_adapts_the_image_tower_alone(backbone: Backbone) -> None:
    adapted = LORA.adapt(make_task(backbone, protocol=PUBLISHED), LORA.configure(QUICK))
    assert adapted.embed_classes is None
