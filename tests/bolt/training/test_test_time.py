"""Test-time adaptation: trusted images, the rows of a batch, and properties of every method of the track."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.seeds import torch_generator
from bolt.task.task import Task, Unlabelled
from bolt.training.adaptation import Trainable
from bolt.training.loop import Diverged
from bolt.training.test_time import trusted_per_class, trusted_samples, two_streams, unlabelled_losses
from tests.helpers.adapting import run, with_looks
from tests.helpers.towers import make_task, moved_tensors, random_backbone


@pytest.mark.parametrize(
    ("images", "classes", "expected"),
    [(201, 19, 1), (100, 19, 0), (8000, 10, 80), (26032, 10, 100), (9, 1, 0), (10, 1, 1), (5794, 200, 2)],
)
def test_a_class_trusts_a_tenth_of_its_share(images: int, classes: int, expected: int) -> None:
    assert trusted_per_class(images, classes) == expected == min(int(images / classes / 10), 100)


@pytest.mark.parametrize("per_class", [3, 0])
def test_trusted_are_the_most_probable_of_every_class(per_class: int) -> None:
    probabilities = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    expected = {int(index) for row in probabilities.T for index in row.argsort()[50 - per_class :]}
    assert set(trusted_samples(probabilities, per_class).nonzero().flatten().tolist()) == expected


def test_the_earlier_of_equals_is_trusted() -> None:
    assert trusted_samples(torch.full((6, 2), 0.5), 2).tolist() == [True, True, False, False, False, False]


def permuted(stream: str, number: int, size: int) -> Tensor:
    return torch.randperm(size, generator=torch_generator(stream, number, size))


def streams(unlabelled: int, trusted: int, batch_size: int) -> Callable[[int], Tensor]:
    """Return the order of images of which the first ones are trusted."""

    def unread(*arguments: Any) -> Tensor:
        raise AssertionError("an order needs no image")

    size = unlabelled + trusted
    return two_streams(torch.arange(size) < trusted, batch_size, Unlabelled(size, unread, unread, permuted))


def test_two_streams_of_the_official_sizes() -> None:
    order = streams(1000, 37, 128)
    rows = order(0)
    assert len(rows) == 15 * 128
    for batch in torch.split(rows, 128):
        assert [int((batch < 1037).sum()), int((batch >= 1037).sum())] == [64, 64]
    unlabelled, trusted = rows[rows < 1037], rows[rows >= 1037] - 1037
    assert len(set(unlabelled.tolist())) == 15 * 64
    assert int(unlabelled.min()) >= 37
    assert set(trusted.tolist()) == set(range(37))
    assert torch.equal(rows, order(0))
    assert not torch.equal(rows, order(1))


def test_trusted_images_come_round_over_epochs() -> None:
    """The stream continues over epochs, and each pass over it has every image once."""
    order = streams(40, 7, 10)
    stream = torch.cat([order(epoch)[order(epoch) >= 47] - 47 for epoch in range(7)])
    assert len(stream) == 7 * 8 * 5
    passes = torch.split(stream, 7)
    assert all(sorted(one_pass.tolist()) == list(range(7)) for one_pass in passes)
    assert len({tuple(one_pass.tolist()) for one_pass in passes}) > 30


@pytest.mark.parametrize(
    ("unlabelled", "trusted", "batch_size", "batches", "fresh"),
    [
        (9, 1, 4, 4, 8),  # an incomplete last batch is left out
        (9, 1, 5, 3, 9),  # the larger half of an odd batch is unlabelled
        (3, 2, 32, 1, 3),  # too few for half a batch
        (9, 0, 4, 2, 8),  # no image is trusted, so all rows of a batch are untrusted
        (3, 0, 4, 1, 3),
        (9, 1, 1, 9, 9),  # a batch of one has no second half
    ],
)
def test_every_epoch_has_a_batch(unlabelled: int, trusted: int, batch_size: int, batches: int, fresh: int) -> None:
    order = streams(unlabelled, trusted, batch_size)
    for epoch in range(3):
        rows = order(epoch)
        cut = torch.split(rows, batch_size)
        assert len(cut) == batches
        assert len({len(batch) for batch in cut}) == 1
        seen = rows[rows < unlabelled + trusted]
        assert len(seen) == len(set(seen.tolist())) == fresh
        assert len(rows) - len(seen) == (batches * (batch_size // 2) if trusted else 0)


def whole_tower(task: Task) -> Trainable:
    tower = task.backbone.tower.copy(trainable=task.backbone.tower.state_dict_open_clip())
    return Trainable(tower, list(tower.parameters()), lambda: tower)


def test_weak_views_are_plain_and_strong_views_belong_to_the_epoch(backbone: Backbone) -> None:
    task, seen = with_looks(make_task(backbone, unlabelled=True))
    loss_of_rows, order = unlabelled_losses(task, whole_tower(task).encode, task.text_head, 8, None)
    rows = order(2)[:8]
    seen.clear()
    loss_of_rows(2, rows)
    assert seen == [(3, (rows % 30).tolist()), (0, rows[:4].tolist())]
    assert all(rows[4:] >= 30)


def test_the_given_start_is_trusted(backbone: Backbone) -> None:
    """Trusted images are those of the starting tower's predictions, by default of the frozen tower's."""
    task = make_task(backbone, unlabelled=True)
    start = backbone.tower.copy(trainable=["proj"])
    with torch.no_grad():
        start.proj.weight.neg_()  # every cosine changes its sign, and so does the order of images and classes
    trusted, unlabelled = [], []
    for tower in (None, backbone.tower, start):
        _, order = unlabelled_losses(task, whole_tower(task).encode, task.text_head, 8, tower)
        rows = order(0)
        trusted.append({int(row) - 30 for row in rows if row >= 30})
        unlabelled.append({int(row) for row in rows if row < 30})
    features = task.test_images.features()
    logits = backbone.logit_scale * torch.nn.functional.normalize(features, dim=-1) @ task.head_CD.T
    assert trusted[0] == trusted[1] == set(logits.softmax(dim=1).argmax(dim=0).tolist())
    assert all(labelled.isdisjoint(rest) for labelled, rest in zip(trusted, unlabelled, strict=True))
    assert trusted[2] == set((-logits).softmax(dim=1).argmax(dim=0).tolist()) != trusted[0]


def test_the_loss_is_ufm_on_two_forwards(backbone: Backbone) -> None:
    """The expected loss is computed by the definition in float64, one image after the other."""
    task = make_task(backbone, unlabelled=True)
    trainable = whole_tower(task)
    with torch.no_grad():
        for parameter in trainable.parameters:
            parameter.mul_(1.05)
    loss_of_rows, order = unlabelled_losses(task, trainable.encode, task.text_head, 16, None)
    rows = order(1)[:16]
    loss = loss_of_rows(1, rows)

    def logits(view: int, image: int, tower: Any) -> Tensor:
        features = backbone.encode_images(task.test_images.pixels(view, torch.tensor([image])), tower)
        return (100 * torch.nn.functional.normalize(features.double(), dim=-1) @ task.head_CD.double().T)[0]

    scale = backbone.logit_scale / 100
    total, count = 0.0, 0
    for row in rows.tolist():
        strong = (scale * logits(2, row % 30, trainable.encode)).log_softmax(dim=0)
        if row >= 30:
            target = torch.nn.functional.one_hot((scale * logits(0, row - 30, None)).argmax(), 3).double()
        else:
            target = (scale * logits(0, row, trainable.encode)).softmax(dim=0)
        if float(target.max()) > 0.99:
            total, count = total - float(target @ strong), count + 1
    assert count >= 8
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-4)


def test_gradients_survive_autocast(backbone: Backbone) -> None:
    """Older versions of PyTorch keep the weights that autocast casts under no_grad, and give them no gradient later."""
    task = make_task(backbone, unlabelled=True)
    trainable = whole_tower(task)
    loss_of_rows, order = unlabelled_losses(task, trainable.encode, task.text_head, 8, None)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of_rows(0, order(0)[:8])
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trainable.parameters)


@pytest.mark.parametrize(("classes", "per_class"), [(1, 10), (1, 4), (3, 2), (4, 9)])
def test_odd_worlds(classes: int, per_class: int, backbone: Backbone) -> None:
    """There is a single class, too few images to trust any, or fewer images than a batch."""
    task = make_task(backbone, unlabelled=True, classes=classes, per_class=per_class)
    _, logits = run("layer_norm", task, batch_size=32)
    assert logits.shape == (classes * per_class, classes)
    assert torch.isfinite(logits).all()


def test_where_nobody_is_sure_nothing_moves() -> None:
    """If no image is trusted and none is confident, the loss is 0, and no step changes anything."""
    backbone = random_backbone()
    backbone.logit_scale = 0.1
    task = make_task(backbone, unlabelled=True, classes=4, per_class=9)
    assert not moved_tensors(backbone, run("layer_norm", task, epochs=2)[0])


def test_a_tower_that_breaks_in_training_diverges(backbone: Backbone) -> None:
    task = make_task(backbone, unlabelled=True)
    with pytest.raises(Diverged, match="epoch 0"):
        run("layer_norm", task, learning_rate=1e38, clip_norm=0.0)
