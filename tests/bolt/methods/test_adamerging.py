"""AdaMerging: coefficients learnt by entropy, against the numbers of the official code."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import tensor_names
from bolt.methods.adamerging import AdaMergingSettings, adapt, minimise_entropy, summed_entropy
from bolt.methods.common.composition import Composition
from tests.helpers.adapting import logits_of
from tests.helpers.towers import RandomSources, make_task, weights_of
from tests.helpers.waves import wave

IMAGES = torch.cat([wave(4, 5, 0.7, 1.3, 0.2), wave(4, 5, 0.45, 1.9, 1)])
HEAD = F.normalize(0.1 * wave(3, 4, 1.1, 0.9, 0.5) + 0.5, dim=-1)
BASE = {
    "fc1.weight": 0.6 * wave(6, 5, 0.9, 1.4, 0.2),
    "fc1.bias": 0.1 * wave(1, 6, 1, 0.8, 0.3)[0],
    "norm.weight": 1 + 0.1 * wave(1, 6, 1, 0.5, 0.6)[0],
    "norm.bias": 0.1 * wave(1, 6, 1, 1.1, 0.7)[0],
    "fc2.weight": 0.7 * wave(4, 6, 1.2, 0.7, 0.4),
}


def task_vector(t: int) -> list[Tensor]:
    return [
        0.5 * wave(6, 5, 0.5 + 0.3 * t, 1.1 - 0.2 * t, 0.1 + t),
        0.2 * wave(1, 6, 1, 0.6 + 0.2 * t, 0.9)[0],
        0.1 * wave(1, 6, 1, 0.4 + 0.3 * t, 0.2)[0],
        0.2 * wave(1, 6, 1, 0.9 - 0.1 * t, 1.2)[0],
        0.5 * wave(4, 6, 0.8 - 0.1 * t, 0.9 + 0.3 * t, 0.5 + t),
    ]


class SmallNetwork:
    """fc2(LN(tanh(fc1 x))) with composed weights, in float64, on two batches of four images."""

    def __init__(self, tied: bool) -> None:
        vectors = zip(task_vector(0), task_vector(1), strict=True)
        stacks = {name: torch.stack(pair) for name, pair in zip(BASE, vectors, strict=True)}
        self.composition = Composition(BASE, stacks, tied=tied, bounds=(0.0, 1.0))

    def logits(self, rows: Tensor) -> Tensor:
        w = self.composition.tensors()
        hidden = torch.tanh(F.linear(IMAGES[rows], w["fc1.weight"], w["fc1.bias"]))
        features = F.linear(F.layer_norm(hidden, (6,), w["norm.weight"], w["norm.bias"]), w["fc2.weight"])
        return 100 * F.normalize(features, dim=-1) @ HEAD.T

    def train(self, steps: int, rate: float = 1e-3) -> list[float]:
        settings = AdaMergingSettings(steps, batch_size=4, learning_rate=rate)
        curve = minimise_entropy(self.composition, self.logits, lambda step: torch.arange(8), settings)
        return [row["train_loss"] for row in curve]

    def gradient(self) -> Tensor:
        with torch.no_grad():
            self.composition.coefficients.fill_(0.3)
        self.composition.coefficients.grad = None
        summed_entropy(self.logits(torch.arange(8)), 4).backward()
        assert self.composition.coefficients.grad is not None
        return self.composition.coefficients.grad.squeeze(-1)

    @property
    def coefficients(self) -> list[list[float]]:
        """Return the coefficients of both sources, by tensor."""
        rows: list[list[float]] = self.composition.coefficients.detach().squeeze(-1).T.tolist()
        return rows


def flat(rows: Any) -> list[float]:
    return [value for row in rows for value in row]


def test_without_coefficients_the_network_is_zero_shot() -> None:
    logits = SmallNetwork(tied=False).logits(torch.arange(1))[0]
    assert logits.tolist() == pytest.approx([33.98457, 23.42007, 16.71216], abs=1e-4)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, (0.299, 0.299)), (10, (0.290025, 0.290015)), (40, (0.261292, 0.260780))],
)
def test_task_wise_coefficients_give_the_official_numbers(steps: int, expected: tuple[float, float]) -> None:
    network = SmallNetwork(tied=True)
    assert network.gradient().flatten().tolist() == pytest.approx([0.069599, 0.245541], abs=1e-4)
    losses = network.train(steps)
    assert losses[0] == pytest.approx(0.080251, abs=1e-5)
    assert flat(network.coefficients) == pytest.approx(expected, abs=1e-4)
    assert steps < 40 or losses[-1] == pytest.approx(0.069369, abs=1e-5)


def test_layer_wise_coefficients_give_the_official_numbers() -> None:
    network = SmallNetwork(tied=False)
    gradient = [-0.204906, 0.243494, 0.110059, 0.141842, -0.008741, -0.002877, 0.100618, 0.094176, 0.072569, -0.231093]
    assert flat(network.gradient().T.tolist()) == pytest.approx(gradient, abs=1e-4)
    losses = network.train(40)
    assert losses[-1] == pytest.approx(0.049929, abs=1e-4)
    expected = [0.334259, 0.262967, 0.262490, 0.262570, 0.336259, 0.340945, 0.262526, 0.262436, 0.266716, 0.335939]
    assert flat(network.coefficients) == pytest.approx(expected, abs=1e-4)
    logits = network.logits(torch.arange(1))[0]
    assert logits.tolist() == pytest.approx([47.51845, 40.49130, 29.83983], abs=1e-2)


def test_a_coefficient_below_zero_only_drifts_on() -> None:
    """Official numbers at a rate ten times as high: unclamped values after 100 steps."""
    network = SmallNetwork(tied=False)
    network.train(100, rate=1e-2)
    expected = [0.260247, -0.027152, -0.034068, -0.034671, 0.422175, 0.861896, -0.029696, -0.031799, 0.544496, 0.414782]
    assert flat(network.coefficients) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("coefficients", ["layer_wise", "task_wise"])
def test_the_tower_is_the_composed_one(coefficients: Literal["layer_wise", "task_wise"], backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=3)
    task = make_task(backbone, sources=sources, unlabelled=True)
    adapted = adapt(task, AdaMergingSettings(5, 4, 1e-2, coefficients=coefficients))
    lambda_SP = adapted.coefficients["lambda"]
    names = list(tensor_names(2))
    assert adapted.trainable_parameters == 3 * (len(names) if coefficients == "layer_wise" else 1)
    after, before = weights_of(adapted), backbone.tower.state_dict_open_clip()
    for place, name in enumerate(names):
        column = lambda_SP[:, place if coefficients == "layer_wise" else 0].tolist()
        update = sum(c * vector[name] for c, vector in zip(column, sources.vectors.values(), strict=True))
        torch.testing.assert_close(after[name], before[name] + update, rtol=1e-4, atol=1e-5)
    assert (lambda_SP != 0.3).any()


def test_zero_and_equal_sources(backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=2)
    sources.vectors["zero"] = {name: 0 * tensor for name, tensor in sources.vectors["source_0"].items()}
    sources.vectors["copy"] = sources.vectors["source_1"]
    task = make_task(backbone, sources=sources, unlabelled=True)
    lambda_SP = adapt(task, AdaMergingSettings(4, 4)).coefficients["lambda"]
    assert torch.equal(lambda_SP[2], torch.full_like(lambda_SP[2], 0.3))
    torch.testing.assert_close(lambda_SP[1], lambda_SP[3])


@pytest.mark.parametrize(("classes", "per_class"), [(1, 10), (3, 1), (1, 1)])
def test_few_images_are_enough(classes: int, per_class: int, backbone: Backbone) -> None:
    task = make_task(backbone, classes=classes, per_class=per_class, unlabelled=True, shots=1)
    adapted = adapt(task, AdaMergingSettings(3, 4))
    assert torch.isfinite(logits_of(task, adapted)).all()
    if classes == 1:  # the entropy and its gradient are zero
        assert torch.equal(adapted.coefficients["lambda"], torch.full_like(adapted.coefficients["lambda"], 0.3))
        assert adapted.details["share_of_commonest_class"] == 1
