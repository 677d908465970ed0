"""CLIP-Adapter against numbers of the official code (gaopengcuhk/CLIP-Adapter 08d07f8, Dassl.pytorch c61a1b5)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.clip_adapter import ClipAdapterSettings, train_adapter
from bolt.task.classifiers import AdapterClassifier
from tests.helpers.adapting import classifier, with_curve, with_epochs
from tests.helpers.frozen_tasks import frozen_task
from tests.helpers.waves import plane_wave, unit

TEXT = 1 + 0.4 * plane_wave(3, 8, 1.1, 0.9, 0.5)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
SUPPORT = (TEXT[LABELS] + 0.5 * plane_wave(6, 8, 0.7, 1.3, 0.2)).float()
QUERIES = (TEXT[[0, 1, 2, 1]] + 0.7 * plane_wave(4, 8, 0.37, 1.9, 0.1)).float()
DOWN, UP = (0.4 * plane_wave(2, 8, 0.9, 0.5, 0.3)).float(), (0.4 * plane_wave(8, 2, 1.3, 0.7, 0.6)).float()


def close(value: Tensor, expected: list[float], rtol: float = 1e-4) -> None:
    torch.testing.assert_close(value, torch.tensor(expected), rtol=rtol, atol=1e-5)


def test_the_untrained_adapter_gives_the_official_logits() -> None:
    untrained = AdapterClassifier(unit(TEXT), 100.0, DOWN, UP, 0.2)
    close(untrained.adapter(QUERIES)[0], [0.589725, 0.660465, 0, 0, 0, 0.688152, 0.552786, 0])
    close(untrained(QUERIES)[0], [92.75528, 90.75870, 84.23934])
    close(replace(untrained, ratio=0.0)(QUERIES)[0], [91.88447, 88.86644, 81.92291])


def test_training_follows_the_official_code(backbone: Backbone) -> None:
    task, losses = with_curve(frozen_task(backbone, lambda view: SUPPORT, LABELS, unit(TEXT)))
    task, kept = with_epochs(task, lambda adapted: classifier(adapted, AdapterClassifier))
    train_adapter(task, ClipAdapterSettings(), DOWN, UP)
    assert [losses[step] for step in (0, 1, 2, 3, 10, 39)] == pytest.approx(
        [0.956590, 0.956584, 0.953586, 0.949352, 0.898189, 0.664710], rel=1e-4
    )
    after_40 = kept[39]
    close(after_40.down_HD[0], [0.123345, 0.260153, 0.356585, 0.386790, 0.313425, 0.139704, -0.073391, -0.252589])
    close(after_40.up_DH[0], [0.231832, 0.371134])
    close(after_40.adapter(QUERIES)[0], [0.383038, 0.810333, 0, 0, 0, 0.143061, 0.201720, 0])
    close(after_40(QUERIES)[0], [91.90709, 89.08893, 81.81343])


def test_raw_and_unit_features_give_the_same_logits() -> None:
    some = AdapterClassifier(unit(TEXT), 100.0, DOWN, UP, 0.2)
    torch.testing.assert_close(some(QUERIES), some(F.normalize(QUERIES, dim=-1)), rtol=1e-5, atol=1e-4)


def test_a_dead_adapter_is_the_text_head(backbone: Backbone) -> None:
    """If V r is negative everywhere, the adapter adds nothing, and only the weight decay changes the layers."""
    task = frozen_task(backbone, lambda view: SUPPORT, LABELS, unit(TEXT))
    adapted = train_adapter(task, ClipAdapterSettings(epochs=5), -torch.ones(2, 8), UP)
    expected = 100 * F.normalize(QUERIES, dim=-1) @ unit(TEXT).T
    torch.testing.assert_close(adapted.classify(QUERIES), expected, rtol=1e-5, atol=1e-4)
