"""LoRA-XS, SVF and VeRA: changed weight matrices, against the numbers of the official codes and peft."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.common.reparametrised import MatrixChange
from bolt.methods.lora_xs import singular_core
from bolt.methods.svf import shifted_matrix
from bolt.methods.vera import random_projections, scaled_projection
from tests.helpers.adapting import adapt
from tests.helpers.towers import make_task, weights_of
from tests.helpers.waves import INPUT, W1, W2, numbers, train_two_layers, two_layers, wave

close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)


def two_cores() -> list[MatrixChange]:
    """Return the cores of both matrices of the small network, at r = 2 and alpha = 4."""
    return [singular_core(weight, 2, 4) for weight in (W1, W2)]


def test_diagonal_cores_give_the_official_numbers() -> None:
    first, second = two_cores()
    first.trained[0].data.copy_(torch.eye(2))
    close(torch.linalg.svdvals(first.change().detach())[:2], 4 / 2 * numbers(1.169200, 0.878889))
    first.trained[0].data.copy_(torch.diag(0.2 * wave(1, 2, 1, 0.9, 0.3)[0]))
    second.trained[0].data.copy_(torch.diag(0.2 * wave(1, 2, 1, 0.9, 0.8)[0]))
    close(first.change()[0].detach(), numbers(-0.093186, 0.129848, 0.043476, -0.134749))
    expected = numbers(-0.013942, 0.457275, 0.805498, -0.805205, -0.118536, -0.103926)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


@pytest.mark.parametrize(
    ("steps", "row"),
    [(10, (-0.003038, -0.000752, 0.040682, -0.052384)), (100, (0.115877, -0.204878, 0.287830, -0.250315))],
)
def test_training_gives_lora_xs_numbers(steps: int, row: tuple[float, ...]) -> None:
    first, second = two_cores()
    losses = train_two_layers(
        [*first.trained, *second.trained], lambda: two_layers(first.change(), second.change()), steps, 4e-3
    )
    official = {1: 1.677363, 10: 1.379301, 100: 0.178462}
    assert losses[0] == pytest.approx(official[1], abs=1e-4)
    assert losses[-1] == pytest.approx(official[steps], abs=1e-4)
    close(first.change()[0].detach(), numbers(*row))


def test_the_authors_start_is_random_small_and_keyed(backbone: Backbone) -> None:
    start = {"epochs": 1, "learning_rate": 1e-30, "warmup_steps": 0, "rank": 4, "init_std": 1e-3}
    one, same, other = (
        weights_of(adapt("lora_xs", make_task(backbone, seed=seed), **start))["proj"] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 < (one - backbone.tower.state_dict_open_clip()["proj"]).abs().max() < 1e-2


def test_a_rank_above_the_matrix_or_its_own_rank_is_cut_down() -> None:
    assert singular_core(W1, 100, 100).trained[0].shape == (4, 4)
    assert singular_core(W1[:, :1] @ W1[:1], 3, 3).trained[0].shape == (1, 1)
    assert singular_core(torch.zeros(3, 4), 2, 2).change().shape == (3, 4)


def two_matrices(scale: float = 1.0) -> list[MatrixChange]:
    """Return both matrices of the small network. Their shifts are those of the SVDiff numbers times ``scale``."""
    matrices = [shifted_matrix(W1), shifted_matrix(W2)]
    for matrix, phase in zip(matrices, (0.3, 0.8), strict=True):
        (delta,) = matrix.trained
        delta.data.copy_(scale * 0.2 * wave(1, len(delta), 1, 0.9, phase)[0])
    return matrices


def test_shifted_singular_values_give_svdiffs_numbers() -> None:
    first, second = two_matrices()
    of_w1, of_w2 = (1.169200, 0.878889, 0.626886, 0.166377), (1.205824, 1.070636, 1.064721, 0.865574, 0.145011)
    for weight, matrix, official in ((W1, first, of_w1), (W2, second, of_w2)):
        shifted = (numbers(*official) + matrix.trained[0].detach()).clamp_min(0)
        close(torch.linalg.svdvals(weight + matrix.change().detach()), shifted.sort(descending=True).values)
    close((W1 + first.change())[0].detach(), numbers(0.135961, 0.619886, 0.066971, -0.578944))
    expected = numbers(0.027873, 0.553620, 0.643798, -0.748281, -0.084407, -0.066545)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


def test_singular_values_are_cut_off_at_zero_unless_free() -> None:
    """Numbers of the SVDiff code for shifts beyond the singular values."""
    first, second = two_matrices(-10)
    close(torch.linalg.svdvals(W1 + first.change()).detach(), numbers(0.578159, 0, 0, 0))
    expected = numbers(0.230105, 0.171209, 0.079636, 0.065490, -0.028535, -0.212806)
    close(two_layers(first.change(), second.change())[0].detach(), expected)
    free = shifted_matrix(W1, free=True)
    (delta,) = free.trained
    delta.data.copy_(first.trained[0])
    u, s, vh = torch.linalg.svd(W1, full_matrices=False)
    close(u.T @ (W1 + free.change()).detach() @ vh.T, torch.diag(s + delta.detach()))


def test_training_gives_svdiffs_numbers() -> None:
    first, second = shifted_matrix(W1), shifted_matrix(W2)
    output = partial(lambda: two_layers(first.change(), second.change()))
    losses = train_two_layers([*first.trained, *second.trained], output, 100, 1e-3, weight_decay=1e-2, clip_norm=1.0)
    assert [losses[step - 1] for step in (1, 10, 100)] == pytest.approx([1.677363, 1.645177, 1.361039], abs=1e-4)
    close(first.trained[0].detach(), numbers(-0.098028, 0.094222, -0.098184, 0.102043))
    close(second.trained[0].detach(), numbers(-0.098964, -0.101546, 0.102379, -0.098599, 0.098348))


def test_free_singular_values_give_svfs_numbers() -> None:
    """Numbers of the SVF code: SGD with rate 0.1 and momentum 0.9 on cross-entropy(5 output, classes 1 and 3)."""
    first = shifted_matrix(0.5 * wave(8, 4, 0.9, 1.4, 0.2), free=True)
    second = shifted_matrix(0.6 * wave(4, 8, 1.2, 0.7, 0.4), free=True)
    w, v = 0.5 * wave(8, 4, 0.9, 1.4, 0.2), 0.6 * wave(4, 8, 1.2, 0.7, 0.4)
    c, d = 0.1 * wave(1, 8, 1, 0.8, 0.3)[0], 0.1 * wave(1, 4, 1, 0.5, 0.6)[0]

    def output() -> Tensor:
        return F.linear(torch.tanh(F.linear(INPUT, w + first.change(), c)), v + second.change(), d)

    optimiser = torch.optim.SGD([*first.trained, *second.trained], lr=0.1, momentum=0.9)
    for step in range(10):
        optimiser.zero_grad()
        F.cross_entropy(5 * output(), torch.tensor([1, 3])).backward()
        if step == 0:
            assert first.trained[0].grad is not None
            close(first.trained[0].grad, numbers(-0.679301, -0.755175, 2.186876, -0.251029))
        optimiser.step()
    close(torch.linalg.svdvals(w) + first.trained[0].detach(), numbers(2.016921, 2.234859, -1.701323, 0.620817))
    close(torch.linalg.svdvals(v) + second.trained[0].detach(), numbers(1.874763, 1.459490, 0.641577, 0.519692))


def two_projections() -> list[MatrixChange]:
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
        scale_d, scale_b = layer.trained
        scale_d.data.add_(0.05 * wave(1, 3, 1, 0.9, d_phase)[0])
        scale_b.data.copy_(0.3 * wave(1, len(scale_b), 1, 1.1, b_phase)[0])
    close(first.change()[0].detach(), numbers(0.004137, 0.004031, -0.001547, -0.004200))
    close(second.change()[0].detach(), numbers(0.011901, 0.011289, -0.003671, -0.010674, 0.001306))
    expected = numbers(0.122433, 0.478765, 0.518358, -0.603619, -0.064519, -0.084042)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


def test_training_gives_pefts_numbers() -> None:
    first, second = two_projections()
    trained = [*first.trained, *second.trained]
    losses = train_two_layers(trained, lambda: two_layers(first.change(), second.change()), 100, 4e-3)
    assert [losses[step - 1] for step in (1, 10, 100)] == pytest.approx([1.677363, 1.651640, 0.422451], abs=1e-4)
    close(first.trained[0].detach(), numbers(-0.433388, 0.615974, 0.579149))
    close(first.trained[1].detach(), numbers(-0.498586, 0.410810, 0.465909, 0.477117, -0.522352))
