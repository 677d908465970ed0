"""KgCoOp against the official code."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.coop import initial_context
from bolt.methods.kgcoop import KgCoOpSettings, adapt
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import ClassText, Task
from tests.bolt.methods.third_vectors import NAMES, close, small_backbone, vector
from tests.helpers.adapting import classifier, with_curve
from tests.helpers.frozen_tasks import frozen_task

SETTINGS = KgCoOpSettings(epochs=6, batch_size=24, learning_rate=0.05)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return small_backbone(torch.float64)


def official(backbone: Backbone) -> Task:
    images, labels = vector("kgcoop/images"), torch.arange(24) // 4
    task = frozen_task(backbone, lambda view: images, labels, vector("kgcoop/teacher"))
    return replace(task, text=ClassText(NAMES, ("photo of a {}.",)))


def test_the_training_follows_the_official_code(backbone: Backbone) -> None:
    task, losses = with_curve(official(backbone))
    close(initial_context(task, SETTINGS), "kgcoop/context_start")
    head = classifier(adapt(task, SETTINGS), CosineClassifier)
    assert losses == pytest.approx(vector("kgcoop/losses").tolist(), rel=1e-5)
    close(head.head_CD, "kgcoop/text_after")
    distance = 1 - F.cosine_similarity(head.head_CD, vector("kgcoop/teacher"), dim=-1).mean()
    assert float(distance) == pytest.approx(float(vector("kgcoop/score_after")), rel=1e-5)
