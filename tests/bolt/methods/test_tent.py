"""Tent against numbers of the official code (DequanWang/tent e9e926a)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.tent import TentSettings, adapt, mean_entropy, minimise_entropy
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Adapted
from tests.helpers.adapting import with_looks
from tests.helpers.towers import make_task, weights_of
from tests.helpers.waves import plane_wave, unit


def matrix(*values: float) -> Tensor:
    return plane_wave(int(values[0]), int(values[1]), *values[2:]).float()


def online(
    backbone: Backbone, parameters: list[Tensor], network: Callable[[Tensor], Tensor], inputs: Tensor, rate: float
) -> tuple[list[float], list[Tensor]]:
    """Return, for three batches of six in turn, the mean entropy and the first row of the outputs."""
    outputs: list[Tensor] = []

    def logits_of(rows: Tensor) -> Tensor:
        outputs.append(network(inputs[rows]))
        return outputs[-1]

    settings = TentSettings(batch_size=6, learning_rate=rate)
    task = make_task(backbone, unlabelled=True)
    none = Adapted(CosineClassifier(task.head_CD, 1.0))
    minimise_entropy(task, parameters, logits_of, lambda epoch: torch.arange(18), settings, lambda: none)
    return [float(mean_entropy(each.detach())) for each in outputs], [each[0].detach() for each in outputs]


def rows_close(rows: list[Tensor], expected: list[list[float]]) -> None:
    torch.testing.assert_close(torch.stack(rows), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_a_batch_norm_network_follows_the_official_code(backbone: Backbone) -> None:
    weight, bias = 1 + 0.2 * matrix(1, 6, 1, 1.7, 0.4)[0], 0.1 * matrix(1, 6, 1, 1.1, 0.6)[0]
    parameters = [weight.requires_grad_(), bias.requires_grad_()]

    def network(inputs: Tensor) -> Tensor:
        hidden = F.linear(inputs, matrix(6, 4, 0.7, 1.3, 0.2), 0.1 * matrix(1, 6, 1, 0.9, 0.1)[0])
        hidden = F.batch_norm(hidden, None, None, weight, bias, training=True).relu()
        return F.linear(hidden, matrix(3, 6, 1.1, 0.9, 0.5), 0.1 * matrix(1, 3, 1, 0.7, 0.3)[0])

    batches = torch.cat([2 * matrix(6, 4, 0.37, 1.9, 0.1 + batch) for batch in range(3)])
    entropies, rows = online(backbone, parameters, network, batches, 0.1)
    assert entropies == pytest.approx([0.721225, 0.623984, 0.734194], rel=1e-4)
    rows_close(
        rows,
        [[2.419598, 2.595302, -0.012779], [4.300232, 2.543162, -1.940715], [2.562429, -1.811347, -4.153289]],
    )
    after = [1.099043, 1.460766, 1.159722, 1.116985, 1.449351, 1.397959]
    torch.testing.assert_close(weight.detach(), torch.tensor(after), rtol=1e-4, atol=1e-5)


def test_a_layer_norm_network_follows_the_official_code(backbone: Backbone) -> None:
    """The expected numbers are from the official functions, applied to layer norms."""
    weight, bias = 1 + 0.2 * matrix(1, 8, 1, 1.7, 0.4)[0], 0.1 * matrix(1, 8, 1, 1.1, 0.6)[0]
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    head = unit(plane_wave(3, 8, 1.1, 0.9, 0.5) + 0.5)

    def network(inputs: Tensor) -> Tensor:
        features = F.layer_norm(inputs, (8,), weight, bias, 1e-5) @ matrix(8, 8, 0.7, 1.3, 0.2)
        return 100 * F.normalize(features, dim=-1) @ head.T

    batches = torch.cat([1 + 1.5 * matrix(6, 8, 0.37, 1.9, 0.1 + batch) for batch in range(3)])
    entropies, rows = online(backbone, parameters, network, batches, 1e-3)
    assert entropies[:2] == pytest.approx([0.129392, 0.100175], rel=1e-3)
    assert entropies[2] == pytest.approx(1.48e-5, rel=1e-2)
    rows_close(
        rows,
        [[44.16240, 68.93622, 41.91170], [57.05243, 58.82764, 16.37861], [56.97998, 44.75349, -1.131896]],
    )
    after = [1.078052, 1.175353, 0.875064, 0.858390, 1.156137, 1.102635, 0.818116, 0.944768]
    torch.testing.assert_close(weight.detach(), torch.tensor(after), rtol=1e-4, atol=1e-5)
    after = [0.058878, 0.101673, 0.036035, -0.066200, -0.094743, -0.020698, 0.076844, 0.087664]
    torch.testing.assert_close(bias.detach(), torch.tensor(after), rtol=1e-4, atol=1e-5)


def test_a_saturated_softmax_has_no_entropy() -> None:
    logits = torch.tensor([[2000.0, -2000.0, 0.0]], requires_grad=True)
    entropy = mean_entropy(logits)
    (gradient,) = torch.autograd.grad(entropy, logits)
    assert float(entropy.detach()) == 0
    assert torch.equal(gradient, torch.zeros(1, 3))
    assert float(mean_entropy(torch.zeros(2, 5))) == pytest.approx(torch.tensor(5.0).log())


def test_entropy_falls(backbone: Backbone) -> None:
    task = make_task(backbone, unlabelled=True)
    entropies = [adapt(task, TentSettings(batch_size=8, epochs=epochs)).details["mean_entropy"] for epochs in (1, 8)]
    assert float(entropies[1]) < 0.98 * float(entropies[0])


def test_every_batch_is_seen_once_in_the_evaluation_view(backbone: Backbone) -> None:
    task, looks = with_looks(make_task(backbone, unlabelled=True))
    adapt(task, TentSettings(batch_size=8))
    seen = [row for _, rows in looks for row in rows]
    assert {view for view, _ in looks} == {0}
    assert sorted(seen) == list(range(30))
    assert seen != sorted(seen)


def test_one_class_stays_where_it_is(backbone: Backbone) -> None:
    """With a single class the entropy is zero, so Adam moves the parameters by rounding errors at most."""
    adapted = adapt(make_task(backbone, unlabelled=True, classes=1), TentSettings(batch_size=8))
    before, after = backbone.tower.state_dict_open_clip(), weights_of(adapted)
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
