"""TIES: trimming, elected signs and merging, against the numbers of the official code."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.ties import merge_task_vectors
from tests.helpers.towers import RandomSources, make_task, weights_of
from tests.helpers.waves import numbers

TIES = METHODS["ties"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-5)


def merge(vectors: Sequence[Tensor], percent: float = 20.0, how: Literal["mean", "sum"] = "mean") -> Tensor:
    named = {str(index): vector for index, vector in enumerate(vectors)}
    return merge_task_vectors(named.__getitem__, list(named), percent, how)


def three_vectors() -> list[Tensor]:
    i = torch.arange(20, dtype=torch.float64)
    return [torch.sin((1.7 + 0.6 * t) * i + 0.3 + t) * (1 + 0.5 * torch.cos(0.9 * i + t)) for t in range(3)]


def test_a_fifth_gives_the_official_numbers() -> None:
    expected = [1.223865, 1.191912, 0, -0.993796, 1.348935, -1.320961, -1.158864, -1.253767, 1.267669, 0, 0, 0.947186,
                0.867762, 0, -1.287818, 0, 0, 0, -1.241547, 1.139418]  # fmt: skip
    close(merge(three_vectors()), numbers(*expected))
    close(merge(three_vectors(), how="sum"), numbers(*expected[:-1], 2.278836))


def test_a_half_gives_the_official_numbers() -> None:
    expected = [1.223865, 1.191912, 0, -0.993796, 1.348935, -1.320961, 0.885611, -0.895543, 0.945896, 0, -0.544312,
                0.947186, -0.817399, 0.902844, -0.986862, 0.802914, -0.615017, 0.982540, -1.081253,
                1.040882]  # fmt: skip
    close(merge(three_vectors(), 50), numbers(*expected))
    total = merge(three_vectors(), 50, "sum")
    close(total[[6, 7, 8, 19]], numbers(1.771223, -1.791086, 1.891792, 3.122647))


def test_copies_zeros_and_opposites() -> None:
    one = three_vectors()[0]
    trimmed = torch.where(one.abs() >= one.abs().sort().values[-5], one, 0)
    close(merge([one]), trimmed)
    close(merge([one, one]), trimmed)
    close(merge([one, one], how="sum"), 2 * trimmed)
    close(merge([one, torch.zeros(20).double()]), trimmed)
    close(merge([one, -one]), torch.zeros(20).double())
    close(merge([torch.zeros(20).double()]), torch.zeros(20).double())


def test_a_tie_takes_the_sign_of_the_majority() -> None:
    """The last two entries cancel out; of the other four, three sums are positive."""
    one, other = numbers(1, 1, 1, -1, 2, -2), numbers(1, 1, 1, -1, -2, 2)
    close(merge([one, other], 100), numbers(1, 1, 1, -1, 2, 2))


def test_everything_can_be_kept() -> None:
    one, other = three_vectors()[:2]
    agree = torch.where(one * other > 0, (one + other) / 2, torch.where(one.abs() > other.abs(), one, other))
    close(merge([one, other], 100), agree)


def test_the_merged_tower(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    task = make_task(backbone, sources=sources)
    adapted = TIES.adapt(task, TIES.configure({"alphas": [0.7]}))
    before, after = backbone.tower.state_dict_open_clip(), weights_of(adapted)
    vectors = [torch.cat([v[name].flatten() for name in before]) for v in sources.vectors.values()]
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    torch.testing.assert_close(moved, 0.7 * merge(vectors), rtol=1e-4, atol=1e-5)
    assert adapted.trainable_parameters == 0
