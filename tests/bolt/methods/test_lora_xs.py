"""LoRA-XS: the core between singular directions, against the numbers of the official code."""

from functools import partial
from typing import Any

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.common.reparametrised import weight_matrices
from bolt.methods.lora_xs import LoraXsSettings, SingularCore
from tests.helpers.towers import make_task, moved_tensors
from tests.helpers.vit_shapes import VIT_B32, VIT_L14
from tests.helpers.waves import W1, W2, numbers, train_two_layers, two_layers, wave

LORA_XS = METHODS["lora_xs"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)


def two_cores() -> list[SingularCore]:
    """Return the cores of both matrices of the small network, at r = 2 and alpha = 4."""
    return [SingularCore.of(weight, 2, 4) for weight in (W1, W2)]


def test_diagonal_cores_give_the_official_numbers() -> None:
    first, second = two_cores()
    close(first.a.norm(dim=-1), numbers(1.169200, 0.878889))
    first.r.data.copy_(torch.diag(0.2 * wave(1, 2, 1, 0.9, 0.3)[0]))
    second.r.data.copy_(torch.diag(0.2 * wave(1, 2, 1, 0.9, 0.8)[0]))
    close(first.change()[0].detach(), numbers(-0.093186, 0.129848, 0.043476, -0.134749))
    expected = numbers(-0.013942, 0.457275, 0.805498, -0.805205, -0.118536, -0.103926)
    close(two_layers(first.change(), second.change())[0].detach(), expected)


@pytest.mark.parametrize(
    ("steps", "row"),
    [(10, (-0.003038, -0.000752, 0.040682, -0.052384)), (100, (0.115877, -0.204878, 0.287830, -0.250315))],
)
def test_training_gives_the_official_numbers(steps: int, row: tuple[float, ...]) -> None:
    first, second = two_cores()
    losses = train_two_layers([first.r, second.r], lambda: two_layers(first.change(), second.change()), steps, 4e-3)
    official = {1: 1.677363, 10: 1.379301, 100: 0.178462}
    assert losses[0] == pytest.approx(official[1], abs=1e-4)
    assert losses[-1] == pytest.approx(official[steps], abs=1e-4)
    close(first.change()[0].detach(), numbers(*row))


@pytest.mark.parametrize(("shape", "matrices"), [(VIT_B32, 49), (VIT_L14, 97)], ids=["vit_b", "vit_l"])
def test_it_changes_every_matrix_of_the_papers_towers(shape: Any, matrices: int) -> None:
    with torch.device("meta"):
        tower = ImageTower(shape)
    assert len(weight_matrices(tower)) == matrices


def test_counts_and_start(backbone: Backbone) -> None:
    task = make_task(backbone)
    still = LORA_XS.adapt(task, LoraXsSettings(epochs=1, learning_rate=1e-30, warmup_steps=0, rank=5))
    assert not moved_tensors(backbone, still)
    assert still.trainable_parameters == 9 * 5**2
    moved = LORA_XS.adapt(task, LoraXsSettings(epochs=2, rank=3, matrices=("projection",)))
    assert moved_tensors(backbone, moved) == {"proj"}
    assert moved.trainable_parameters == 9


def test_the_authors_start_is_random_small_and_keyed(backbone: Backbone) -> None:
    frozen = backbone.tower.state_dict_open_clip()["proj"]
    settings = LoraXsSettings(epochs=1, learning_rate=1e-30, warmup_steps=0, rank=4, init_std=1e-3)
    towers = [LORA_XS.adapt(make_task(backbone, seed=seed), settings).tower for seed in (1, 1, 2)]
    one, same, other = (tower.state_dict_open_clip()["proj"] for tower in towers if tower is not None)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 < (one - frozen).abs().max() < 1e-2


def test_a_rank_above_the_matrix_or_its_own_rank_is_cut_down() -> None:
    assert SingularCore.of(W1, 100, 100).r.shape == (4, 4)
    assert SingularCore.of(W1[:, :1] @ W1[:1], 3, 3).r.shape == (1, 1)
    assert SingularCore.of(torch.zeros(3, 4), 2, 2).change().shape == (3, 4)
