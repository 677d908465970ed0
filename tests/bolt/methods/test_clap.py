"""CLAP and ZS-LP against numbers of the official code (jusiro/CLAP dbdf409, Dassl.pytorch c61a1b5)."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.clap import ClapSettings, adapt, class_weights, train_prototypes
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Task
from tests.helpers.adapting import classifier, with_curve
from tests.helpers.frozen_tasks import frozen_task
from tests.helpers.waves import plane_wave, unit

EMBEDDINGS = 1 + 0.4 * plane_wave(3, 8, 1.1, 0.9, 0.5)
TEXT = (3.5 * EMBEDDINGS).float()
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
VIEWS = [(EMBEDDINGS[LABELS] + 0.5 * plane_wave(6, 8, 0.7, 1.3, 0.2 + 0.11 * view)).float() for view in range(3)]
QUERIES = (EMBEDDINGS[[0, 1, 2, 1]] + 0.7 * plane_wave(4, 8, 0.37, 1.9, 0.1)).float()
STEPS = (0, 1, 2, 3, 10, 50, 299)


@pytest.fixture
def task(backbone: Backbone) -> Task:
    return frozen_task(backbone, lambda view: VIEWS[view - 1], LABELS, unit(EMBEDDINGS))


def test_a_class_is_held_by_its_zero_shot_probability() -> None:
    logits = 100 * unit(torch.cat(VIEWS).double()) @ unit(EMBEDDINGS).T
    weights = class_weights(logits.softmax(dim=-1), LABELS.repeat(3))
    torch.testing.assert_close(weights, torch.tensor([0.343394, 0.274224, 0.993167]), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("constraint", "losses", "prototype", "logits"),
    [
        (
            "none",
            [0.871154, 0.871139, 0.630804, 0.386339, 0.054362, 0.003049, 0.001509],
            [4.604625, 5.886489, 4.356597, 2.136768, 1.703232, 2.846066, 3.616260, 3.388945],
            [89.48992, 85.05261, 75.81149],
        ),
        (
            "class_adaptive",
            [0.871154, 0.871139, 0.639114, 0.435041, 0.475200, 0.288331, 0.286620],
            [4.353991, 5.046738, 4.387063, 3.107137, 2.292677, 2.389751, 3.116693, 3.982277],
            [91.85545, 88.30772, 81.26556],
        ),
    ],
    ids=["zs_lp", "clap"],
)
def test_training_follows_the_official_code(
    constraint: Literal["class_adaptive", "none"],
    losses: list[float],
    prototype: list[float],
    logits: list[float],
    task: Task,
) -> None:
    task, seen = with_curve(task)
    adapted = train_prototypes(task, ClapSettings(constraint=constraint, views=3), TEXT)
    assert [seen[step] for step in STEPS] == pytest.approx(losses, rel=1e-3)
    classify = classifier(adapted, LinearClassifier)
    torch.testing.assert_close(classify.weight_CD[0], F.normalize(torch.tensor(prototype), dim=0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(classify(QUERIES)[0], torch.tensor(logits), rtol=1e-4, atol=5e-3)


def test_text_norm_rescales_rate_and_penalty(task: Task) -> None:
    """Training at length m equals training a unit head with the rate divided by, and the penalty multiplied by m^2."""
    settings = ClapSettings(views=3, text_norm=3.5, epochs=20)
    direct = train_prototypes(task, settings, 3.5 * unit(EMBEDDINGS)).classify(QUERIES)
    torch.testing.assert_close(adapt(task, settings).classify(QUERIES), direct)


def test_an_absent_class_has_the_mean_weight_of_the_others(backbone: Backbone) -> None:
    probabilities: Tensor = torch.tensor([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
    assert class_weights(probabilities, torch.tensor([0, 2])).tolist() == pytest.approx([0.8, 0.5, 0.2])


@pytest.mark.parametrize(("images", "rows"), [(6, 18), (300, 256), (600, 512)])
def test_an_epoch_has_as_many_batches_as_the_support(
    images: int, rows: int, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has one step of up to 256 rows below 512 images, else a step per full 256 images."""
    features = torch.randn(images, 8, generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    task = frozen_task(backbone, lambda view: features, torch.arange(images) % 3, unit(EMBEDDINGS))

    def counted(task: Task, parameters: Any, loss: Any, order: Any, *rest: Any, **how: Any) -> None:
        seen.append(len(order(0)))

    monkeypatch.setattr("bolt.methods.clap.fit_task", counted)
    adapt(task, ClapSettings(views=3))
    assert seen == [rows]
