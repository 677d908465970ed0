"""VeRA: shared random matrices and scaling vectors, against the numbers of peft."""

from functools import partial
from typing import Any

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.common.reparametrised import weight_matrices
from bolt.methods.vera import ScaledProjection, VeraSettings, random_projections, scaled_projection
from tests.helpers.towers import make_task, moved_tensors
from tests.helpers.vit_shapes import VIT_B32, VIT_L14
from tests.helpers.waves import W1, W2, numbers, train_two_layers, two_layers, wave

VERA = METHODS["vera"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)


def two_projections() -> list[ScaledProjection]:
    """Return the changes of both matrices of the small network at r = 3, with given random matrices."""
    a, b = 0.6 * wave(3, 5, 1.3, 0.7, 0.2), 0.6 * wave(6, 3, 0.8, 1.5, 0.4)
    return [scaled_projection(weight, a, b, 0.1) for weight in (W1, W2)]


def test_the_random_matrices_are_pefts() -> None:
    a, b = random_projections([W1.shape, W2.shape], 3, 0)
    assert (a.shape, b.shape) == ((3, 5), (6, 3))
    close(a[0].double(), numbers(-0.008201, 0.587645, -0.901601, -0.806181, -0.421915))
    close(b[0].double(), numbers(0.052388, 0.559088, 0.848560))


def test_scaling_vectors_give_pefts_numbers() -> None:
    first, second = two_projections()
    for layer, d_phase, b_phase in ((first, 0.1, 0.3), (second, 0.7, 0.9)):
        layer.scale_d.data.add_(0.05 * wave(1, 3, 1, 0.9, d_phase)[0])
        layer.scale_b.data.copy_(0.3 * wave(1, len(layer.scale_b), 1, 1.1, b_phase)[0])
    close(first.change()[0].detach(), numbers(0.004137, 0.004031, -0.001547, -0.004200))
    close(second.change()[0].detach(), numbers(0.011901, 0.011289, -0.003671, -0.010674, 0.001306))
    expected = numbers(0.122433, 0.478765, 0.518358, -0.603619, -0.064519, -0.084042)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


def test_training_gives_pefts_numbers() -> None:
    first, second = two_projections()
    trained = [scale for layer in (first, second) for scale in (layer.scale_d, layer.scale_b)]
    losses = train_two_layers(trained, lambda: two_layers(first.change(), second.change()), 100, 4e-3)
    assert [losses[step - 1] for step in (1, 10, 100)] == pytest.approx([1.677363, 1.651640, 0.422451], abs=1e-4)
    close(first.scale_d.detach(), numbers(-0.433388, 0.615974, 0.579149))
    close(first.scale_b.detach(), numbers(-0.498586, 0.410810, 0.465909, 0.477117, -0.522352))


@pytest.mark.parametrize(
    ("shape", "rank", "count"),
    [(VIT_B32, 16, 84_240), (VIT_B32, 256, 96_000), (VIT_L14, 16, 223_504), (VIT_L14, 256, 246_784)],
)
def test_it_trains_as_many_numbers_as_on_the_papers_towers(shape: Any, rank: int, count: int) -> None:
    with torch.device("meta"):
        weights = weight_matrices(ImageTower(shape))
        a, b = torch.empty(rank, shape.mlp_width), torch.empty(shape.mlp_width, rank)
        layers = [scaled_projection(weight, a, b, 0.1) for weight in weights.values()]
    assert sum(layer.scale_d.numel() + layer.scale_b.numel() for layer in layers) == count


def test_counts_and_start(backbone: Backbone) -> None:
    task = make_task(backbone)
    still = VERA.adapt(task, VeraSettings(epochs=1, learning_rate=1e-30, warmup_steps=0, rank=5))
    assert not moved_tensors(backbone, still)
    moved = VERA.adapt(task, VeraSettings(epochs=2, rank=3, matrices=("projection",)))
    assert moved_tensors(backbone, moved) == {"proj"}
    assert moved.trainable_parameters == 3 + 16
