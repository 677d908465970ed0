"""TIES, Iso-C, LiNeS, Consensus and KnOTS against the numbers of the official codes."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.consensus import users
from bolt.methods.iso_c import isotropic
from bolt.methods.knots import KnotsSettings, merge_matrices
from bolt.methods.lines import constant_of, scaled_by_depth
from bolt.methods.ties import merge_task_vectors
from tests.bolt.methods.third_vectors import close as near
from tests.bolt.methods.third_vectors import names, vector
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


def test_the_merged_tower(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    task = make_task(backbone, sources=sources)
    adapted = TIES.adapt(task, TIES.configure({"alphas": [0.7]}))
    before, after = backbone.tower.state_dict_open_clip(), weights_of(adapted)
    vectors = [torch.cat([v[name].flatten() for name in before]) for v in sources.vectors.values()]
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    torch.testing.assert_close(moved, 0.7 * merge(vectors), rtol=1e-4, atol=1e-5)
    assert adapted.trainable_parameters == 0


def matrix(task: int, rows: int, columns: int, rate: float) -> Tensor:
    """Return the task vector of one matrix in the official code's example."""
    i, j = torch.arange(rows, dtype=torch.float64)[:, None], torch.arange(columns, dtype=torch.float64)
    wave = torch.sin((rate + 0.3 * task) * i + (1.3 - 0.2 * task) * j + 0.1 + task)
    return wave * (1 + 0.5 * torch.sin(1.9 * i + 0.31 * (task + 1) * j + 2))


@pytest.mark.parametrize(
    ("shape", "rate", "tasks", "value", "row"),
    [
        ((6, 9), 0.7, 3, 3.300691,
         [2.338201, 1.937974, -0.312471, -0.660812, -0.094463, 0.159474, 0.692629, 0.762185, -0.205689]),
        ((10, 8), 0.8, 2, 1.905233,
         [1.079941, 1.424871, -0.199156, -0.021133, -0.119184, -0.002620, 0.101895, 0.195535]),
    ],
    ids=["wide", "tall"],
)  # fmt: skip
def test_isotropic_matrices_have_the_official_numbers(
    shape: tuple[int, int], rate: float, tasks: int, value: float, row: list[float]
) -> None:
    merged = isotropic(torch.stack([matrix(task, *shape, rate) for task in range(tasks)]).sum(dim=0))
    close(torch.linalg.svdvals(merged), torch.full((min(shape),), value).double())
    close(merged[0], numbers(*row))


def test_a_zero_direction_stays_zero() -> None:
    assert not isotropic(torch.zeros(4, 3)).any()
    flat = torch.outer(torch.arange(1.0, 5), torch.tensor([1.0, -1, 2]))
    close(isotropic(flat), flat / 3)


KEYS = sorted(names("merge/tau/"))


def taus() -> dict[str, Tensor]:
    return {key: vector(f"merge/tau/{key}") for key in KEYS}


def total() -> dict[str, Tensor]:
    return {key: tensor.sum(dim=0) for key, tensor in taus().items()}


def test_lines_scales_the_sum_by_depth_as_the_official_code() -> None:
    constant = constant_of(total(), total(), 4)
    assert constant == pytest.approx(float(vector("lines/sum_alpha")))
    for key, tensor in scaled_by_depth(total(), 3, constant, 0.7).items():
        near(tensor, f"lines/sum/{key}")
    single = {key: tensor[0] for key, tensor in taus().items()}
    for key, tensor in scaled_by_depth(single, 3, 0.3, 0.7).items():
        near(tensor, f"lines/single_alpha.3/{key}")


def test_lines_of_ties_has_the_official_constant() -> None:
    vectors, sizes = taus(), [total()[key].numel() for key in KEYS]
    merged = merge_task_vectors(
        lambda task: torch.cat([vectors[key][int(task)].flatten() for key in KEYS]), ["0", "1", "2", "3"], 20, "mean"
    )
    update = {key: part.view(total()[key].shape) for key, part in zip(KEYS, torch.split(merged, sizes), strict=True)}
    for key, tensor in update.items():
        near(tensor, f"lines/ties_merged/{key}")
    constant = constant_of(update, total(), 4)
    assert constant == pytest.approx(float(vector("lines/ties_alpha")), rel=1e-5)
    for key, tensor in scaled_by_depth(update, 3, constant, 0.7).items():
        near(tensor, f"lines/ties/{key}")


def test_a_tower_of_one_block_and_an_update_of_zeros() -> None:
    update = {"transformer.resblocks.0.a": torch.ones(2), "proj": torch.ones(2)}
    assert scaled_by_depth(update, 1, 0.5, 1.0)["transformer.resblocks.0.a"].tolist() == [0.5, 0.5]
    assert constant_of({"a": torch.zeros(2)}, {"a": torch.zeros(2)}, 3) == 0


@pytest.mark.parametrize(("strength", "place"), [(0.2, 0), (0.4, 1), (0.6, 2)])
def test_the_masks_of_consensus_are_the_official_ones(strength: float, place: int) -> None:
    vectors = [{key: tensor[task] for key, tensor in taus().items()} for task in range(4)]
    counts = users(total(), vectors, strength)
    every = torch.cat([counts[key].flatten() for key in KEYS])
    assert float(every.float().mean()) / 4 == pytest.approx(float(vector("consensus/density")[place]), abs=1e-5)
    if strength == 0.4:
        assert torch.equal(every.long(), vector("consensus/counts_lambda.4"))
        assert float((every >= 2).float().mean()) == pytest.approx(float(vector("consensus/kept")), abs=1e-5)
        for key in KEYS:
            near(torch.where(counts[key] >= 2, total()[key], 0), f"consensus/update/{key}")


@pytest.mark.parametrize(("name", "percent"), [("ties20", 20.0), ("ties100", 100.0)])
def test_knots_are_the_official_ones(name: str, percent: float) -> None:
    vectors = {key: list(vector(f"knots/tau/{key}")) for key in ("a.weight", "b.weight")}
    for key, found in merge_matrices(vectors, KnotsSettings(keep_percent=percent)).items():
        near(0.6 * found, f"knots/{name}/{key}", atol=1e-4)
