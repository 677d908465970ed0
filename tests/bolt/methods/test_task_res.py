"""TaskRes against numbers of the official code (geekyutao/TaskRes 5195359, Dassl.pytorch c61a1b5)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.task_res import TaskResSettings, adapt, epochs_of, text_length, train_residual
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Task
from tests.helpers.adapting import classifier, with_curve, with_epochs
from tests.helpers.frozen_tasks import frozen_task
from tests.helpers.waves import plane_wave, unit

TEXT = (1 + 0.4 * plane_wave(3, 8, 1.1, 0.9, 0.5)).float()
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
SUPPORT = (TEXT[LABELS] + 0.5 * plane_wave(6, 8, 0.7, 1.3, 0.2)).float()
QUERIES = (TEXT[[0, 1, 2, 1]] + 0.7 * plane_wave(4, 8, 0.37, 1.9, 0.1)).float()


def close(value: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(value, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.fixture
def task(backbone: Backbone) -> Task:
    return frozen_task(backbone, lambda view: SUPPORT, LABELS, unit(TEXT))


def direction(residual: list[float]) -> Tensor:
    """Return the first class's unit weight with the given residual, at alpha 0.5."""
    return F.normalize(TEXT[0] + 0.5 * torch.tensor(residual), dim=-1)


def test_training_follows_the_official_code(task: Task) -> None:
    task, losses = with_curve(task)
    task, kept = with_epochs(task, lambda adapted: classifier(adapted, LinearClassifier))
    train_residual(task, TaskResSettings(), TEXT)
    assert [losses[step] for step in (0, 1, 2, 10, 50, 99)] == pytest.approx(
        [0.788065, 0.787984, 0.772196, 0.654022, 0.325079, 0.265072], rel=1e-4
    )
    ten, last = kept[9], kept[99]
    after_10 = [0.017845, 0.017824, -0.017858, -0.017844, -0.017798, 0.017846, 0.017819, -0.017855]
    after_100 = [0.091494, 0.089230, -0.092599, -0.091448, -0.085949, 0.091597, 0.088572, -0.092554]
    torch.testing.assert_close(ten.weight_CD[0], direction(after_10), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(last.weight_CD[0], direction(after_100), rtol=1e-4, atol=1e-6)
    close(last(QUERIES)[0], [91.63371, 88.95912, 80.57217])
    close(last(QUERIES)[1], [89.32193, 92.93109, 86.68965])


def test_the_same_numbers_on_unit_embeddings_go_further(task: Task) -> None:
    """The official code on unit embeddings gives the result that a unit text head would give without ``text_norm``."""
    task, losses = with_curve(task)
    adapted = train_residual(task, TaskResSettings(), unit(TEXT))
    assert losses[-1] == pytest.approx(0.055930, rel=1e-3)
    close(adapted.classify(QUERIES)[0], [91.16257, 89.08095, 78.94801])


@pytest.mark.parametrize(("width", "length"), [(64, 10 * 8**-0.5), (512, 10.0), (1024, 10.0)])
def test_a_narrow_tower_has_shorter_raw_embeddings(width: int, length: float) -> None:
    assert text_length(TaskResSettings(), width) == pytest.approx(length)


def test_text_norm_is_the_length_of_the_raw_embeddings(task: Task) -> None:
    """Training on raw embeddings of length m equals training on the unit head with alpha / m."""
    short = TaskResSettings(epochs=10, text_norm=24.0)
    length = text_length(short, 8)
    assert length == pytest.approx(3)
    by_length = train_residual(task, short, length * unit(TEXT)).classify(QUERIES)
    by_alpha = train_residual(task, replace(short, alpha=0.5 / length), unit(TEXT)).classify(QUERIES)
    torch.testing.assert_close(adapt(task, short).classify(QUERIES), by_length)
    torch.testing.assert_close(by_alpha, by_length, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("shots", "epochs"), [(1, 100), (4, 100), (8, 200), (16, 200)])
def test_more_images_train_longer(shots: int, epochs: int) -> None:
    assert epochs_of(TaskResSettings(), torch.arange(3).repeat(shots)) == epochs
    assert epochs_of(TaskResSettings(epochs=7), torch.arange(3).repeat(shots)) == 7
