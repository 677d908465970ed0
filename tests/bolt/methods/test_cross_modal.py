"""The cross-modal probe against numbers of the official code (linzhiqiu/cross_modal_adaptation ac9077e)."""

from collections.abc import Iterator
from itertools import cycle, islice

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.cross_modal import CrossModalSettings, adapt, batches, iterations_of, train_head, warmup_schedule
from bolt.task.classifiers import LinearClassifier
from tests.helpers.adapting import classifier, with_curve, with_epochs
from tests.helpers.frozen_tasks import clip_like, frozen_task
from tests.helpers.waves import plane_wave, unit


def test_the_schedule_is_the_official_one() -> None:
    rate = warmup_schedule(1e-3, 12_800)
    expected = [1e-5, 2e-5, 4e-5, 9.8e-4, 1e-3, 9.99999985e-4, 9.99999940e-4]
    assert [rate(step, 100) for step in (0, 1, 2, 49, 50, 51, 52)] == pytest.approx(expected, rel=1e-9)
    assert 0 < rate(12_799, 100) < 1e-6


def test_training_follows_the_official_code(backbone: Backbone) -> None:
    """Train on batches of four images and four texts, in order, with two prompts per class."""
    images = unit(torch.cat([plane_wave(4, 8, 0.7, 1.3, 0.2 + view) + 0.8 for view in range(3)]))
    prompts = 2 * (plane_wave(8, 8, 1.1, 0.9, 0.5) + 0.5)
    labels = torch.arange(4).repeat(3)
    # The official code has the prompts as text samples. Here they are given as images, and the text head is not read.
    samples = torch.cat([images, unit(prompts)])
    sample_labels = torch.cat([labels, torch.arange(4).repeat_interleave(2)])
    start = unit(prompts.view(4, 2, 8).mean(dim=1))

    def rows() -> Iterator[Tensor]:
        pairs = zip(cycle(torch.arange(12).split(4)), cycle((12 + torch.arange(8)).split(4)), strict=False)
        return (torch.cat(pair) for pair in pairs)

    task, losses = with_curve(frozen_task(backbone, lambda view: images, labels, start))
    task, epochs = with_epochs(task, lambda adapted: classifier(adapted, LinearClassifier))
    task.backbone.logit_scale = 99.99996
    # A prime number of iterations makes every step an epoch. The rate falls little in 120 of 12,800 iterations.
    settings = CrossModalSettings(iterations=12_799, wise_ft=1.0)
    assert start[0].tolist() == pytest.approx(
        [0.512280, 0.533962, 0.307939, 0.005261, -0.145011, -0.029155, 0.265152, 0.515185], abs=1e-5
    )

    class Stop(Exception):
        pass

    def first_120() -> Iterator[Tensor]:
        yield from islice(rows(), 120)
        raise Stop

    with pytest.raises(Stop):
        train_head(task, settings, samples, sample_labels, first_120(), 8)
    assert [losses[step] for step in (0, 1, 2, 49, 100, 119)] == pytest.approx(
        [14.57596, 12.79549, 11.76363, 10.75166, 6.727538, 5.789499], rel=1e-4
    )
    last = epochs[119]
    expected = torch.tensor([0.549450, 0.538987, 0.261344, -0.005259, -0.082298, 0.036533, 0.303011, 0.511200])
    torch.testing.assert_close(last.weight_CD[0], expected, rtol=1e-4, atol=1e-5)
    queries = (plane_wave(4, 8, 0.37, 1.9, 0.1) + 0.8).float()
    torch.testing.assert_close(
        last(queries)[0], torch.tensor([66.47514, 39.53634, 42.15107, 67.96049]), rtol=1e-4, atol=1e-3
    )
    mixed = torch.lerp(start, last.weight_CD, 0.5)
    half = torch.tensor([0.530865, 0.536474, 0.284642, 0.000001, -0.113655, 0.003689, 0.284082, 0.513192])
    torch.testing.assert_close(mixed[0], half, rtol=1e-4, atol=1e-5)


def test_the_result_is_the_mean_of_trained_weights_and_text_head(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=2).task
    trained, mixed = (
        classifier(adapt(task, CrossModalSettings(iterations=50, wise_ft=share)), LinearClassifier)
        for share in (1.0, 0.5)
    )
    torch.testing.assert_close(mixed.weight_CD, (trained.weight_CD + task.head_CD) / 2)


def test_texts_alone_keep_classes_without_images(backbone: Backbone) -> None:
    """A class without an image is still predicted, because of its text."""
    problem = clip_like(backbone, shots=4)
    kept = problem.task.support.labels_N < 8
    task = frozen_task(
        backbone,
        lambda view: problem.task.support.features(view)[kept],
        problem.task.support.labels_N[kept],
        problem.task.head_CD,
    )
    adapted = adapt(task, CrossModalSettings(iterations=2000))
    texts = F.normalize(problem.task.head_CD, dim=-1)
    assert torch.equal(adapted.classify(texts).argmax(dim=-1), torch.arange(10))


def test_every_pass_visits_all_full_batches(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=1).task
    stream = list(islice(batches(task, "images", 10, 4), 4))
    assert all(len(batch) == 4 for batch in stream)
    assert len(set(torch.cat(stream[:2]).tolist())) == len(set(torch.cat(stream[2:]).tolist())) == 8
    assert not torch.equal(torch.cat(stream[:2]), torch.cat(stream[2:]))
    assert torch.equal(stream[0], next(batches(task, "images", 10, 4)))


@pytest.mark.parametrize(
    ("samples", "in_batch", "expected"), [(20, 4, 100), (320, 4, 1600), (322, 4, 1700), (32_000, 4, 12_800)]
)
def test_the_length_follows_the_number_of_images(samples: int, in_batch: int, expected: int) -> None:
    assert iterations_of(CrossModalSettings(), samples, in_batch) == expected
