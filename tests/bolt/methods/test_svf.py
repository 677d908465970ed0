"""SVF: shifted singular values, against the numbers of its two reference codes."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.common.reparametrised import weight_matrices
from bolt.methods.svf import ShiftedMatrix, SvfSettings
from tests.helpers.towers import make_task, moved_tensors
from tests.helpers.vit_shapes import VIT_B32, VIT_L14
from tests.helpers.waves import INPUT, W1, W2, numbers, train_two_layers, two_layers, wave

SVF = METHODS["svf"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)


def two_matrices(scale: float = 1.0) -> list[ShiftedMatrix]:
    """Both matrices of the small network, with the shifts of SVDiff's numbers times ``scale``."""
    matrices = [ShiftedMatrix.of(W1), ShiftedMatrix.of(W2)]
    for matrix, phase in zip(matrices, (0.3, 0.8), strict=True):
        matrix.delta.data.copy_(scale * 0.2 * wave(1, len(matrix.s), 1, 0.9, phase)[0])
    return matrices


def test_shifted_singular_values_give_svdiffs_numbers() -> None:
    first, second = two_matrices()
    close(first.s, numbers(1.169200, 0.878889, 0.626886, 0.166377))
    close(second.s, numbers(1.205824, 1.070636, 1.064721, 0.865574, 0.145011))
    close((W1 + first.change())[0].detach(), numbers(0.135961, 0.619886, 0.066971, -0.578944))
    expected = numbers(0.027873, 0.553620, 0.643798, -0.748281, -0.084407, -0.066545)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


def test_singular_values_are_cut_off_at_zero_unless_free() -> None:
    """Numbers of the SVDiff code for shifts beyond the singular values."""
    first, second = two_matrices(-10)
    close(torch.linalg.svdvals(W1 + first.change()).detach(), numbers(0.578159, 0, 0, 0))
    expected = numbers(0.230105, 0.171209, 0.079636, 0.065490, -0.028535, -0.212806)
    close(two_layers(first.change(), second.change())[0].detach(), expected)
    free = ShiftedMatrix.of(W1, free=True)
    free.delta.data.copy_(first.delta)
    close(free.u.T @ (W1 + free.change()).detach() @ free.vh.T, torch.diag(free.s + free.delta.detach()))


def test_training_gives_svdiffs_numbers() -> None:
    first, second = ShiftedMatrix.of(W1), ShiftedMatrix.of(W2)
    output = partial(lambda: two_layers(first.change(), second.change()))
    losses = train_two_layers([first.delta, second.delta], output, 100, 1e-3, weight_decay=1e-2, clip_norm=1.0)
    assert [losses[step - 1] for step in (1, 10, 100)] == pytest.approx([1.677363, 1.645177, 1.361039], abs=1e-4)
    close(first.delta.detach(), numbers(-0.098028, 0.094222, -0.098184, 0.102043))
    close(second.delta.detach(), numbers(-0.098964, -0.101546, 0.102379, -0.098599, 0.098348))


def test_free_singular_values_give_svfs_numbers() -> None:
    """Numbers of the SVF code: SGD with rate 0.1 and momentum 0.9 on cross-entropy(5 output, classes 1 and 3)."""
    first = ShiftedMatrix.of(0.5 * wave(8, 4, 0.9, 1.4, 0.2), free=True)
    second = ShiftedMatrix.of(0.6 * wave(4, 8, 1.2, 0.7, 0.4), free=True)
    w, v = 0.5 * wave(8, 4, 0.9, 1.4, 0.2), 0.6 * wave(4, 8, 1.2, 0.7, 0.4)
    c, d = 0.1 * wave(1, 8, 1, 0.8, 0.3)[0], 0.1 * wave(1, 4, 1, 0.5, 0.6)[0]

    def output() -> Tensor:
        return F.linear(torch.tanh(F.linear(INPUT, w + first.change(), c)), v + second.change(), d)

    optimiser = torch.optim.SGD([first.delta, second.delta], lr=0.1, momentum=0.9)
    for step in range(10):
        optimiser.zero_grad()
        F.cross_entropy(5 * output(), torch.tensor([1, 3])).backward()
        if step == 0:
            assert first.delta.grad is not None
            close(first.delta.grad, numbers(-0.679301, -0.755175, 2.186876, -0.251029))
        optimiser.step()
    close((first.s + first.delta).detach(), numbers(2.016921, 2.234859, -1.701323, 0.620817))
    close((second.s + second.delta).detach(), numbers(1.874763, 1.459490, 0.641577, 0.519692))


@pytest.mark.parametrize(("shape", "count"), [(VIT_B32, 37_376), (VIT_L14, 99_072)], ids=["vit_b", "vit_l"])
def test_it_trains_one_number_per_singular_value(shape: Any, count: int) -> None:
    with torch.device("meta"):
        tower = ImageTower(shape)
    assert sum(min(weight.shape) for weight in weight_matrices(tower).values()) == count


def test_training_starts_at_the_frozen_tower_and_changes_the_chosen_matrices(backbone: Backbone) -> None:
    task = make_task(backbone)
    still = SVF.adapt(task, SvfSettings(epochs=1, learning_rate=1e-30, warmup_steps=0))
    moved = SVF.adapt(task, SvfSettings(epochs=3, matrices=("projection", "mlp_in")))
    assert not moved_tensors(backbone, still)
    assert moved_tensors(backbone, moved) == {
        "proj",
        *(f"transformer.resblocks.{index}.mlp.c_fc.weight" for index in range(2)),
    }
    assert moved.trainable_parameters == 16 + 2 * 32
