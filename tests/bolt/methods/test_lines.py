"""LiNeS, Consensus and KnOTS against the official codes."""

import pytest
import torch
from torch import Tensor

from bolt.methods.consensus import users
from bolt.methods.knots import KnotsSettings, merge_matrices
from bolt.methods.lines import constant_of, scaled_by_depth
from bolt.methods.ties import merge_task_vectors
from tests.bolt.methods.third_vectors import close, names, vector

KEYS = sorted(names("merge/tau/"))


def taus() -> dict[str, Tensor]:
    return {key: vector(f"merge/tau/{key}") for key in KEYS}


def total() -> dict[str, Tensor]:
    return {key: tensor.sum(dim=0) for key, tensor in taus().items()}


def test_lines_scales_the_sum_by_depth_as_the_official_code() -> None:
    constant = constant_of(total(), total(), 4)
    assert constant == pytest.approx(float(vector("lines/sum_alpha")))
    for key, tensor in scaled_by_depth(total(), 3, constant, 0.7).items():
        close(tensor, f"lines/sum/{key}")
    single = {key: tensor[0] for key, tensor in taus().items()}
    for key, tensor in scaled_by_depth(single, 3, 0.3, 0.7).items():
        close(tensor, f"lines/single_alpha.3/{key}")


def test_lines_of_ties_has_the_official_constant() -> None:
    vectors, sizes = taus(), [total()[key].numel() for key in KEYS]
    merged = merge_task_vectors(
        lambda task: torch.cat([vectors[key][int(task)].flatten() for key in KEYS]), ["0", "1", "2", "3"], 20, "mean"
    )
    update = {key: part.view(total()[key].shape) for key, part in zip(KEYS, torch.split(merged, sizes), strict=True)}
    for key, tensor in update.items():
        close(tensor, f"lines/ties_merged/{key}")
    constant = constant_of(update, total(), 4)
    assert constant == pytest.approx(float(vector("lines/ties_alpha")), rel=1e-5)
    for key, tensor in scaled_by_depth(update, 3, constant, 0.7).items():
        close(tensor, f"lines/ties/{key}")


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
            close(torch.where(counts[key] >= 2, total()[key], 0), f"consensus/update/{key}")


@pytest.mark.parametrize(("name", "percent"), [("ties20", 20.0), ("ties100", 100.0)])
def test_knots_are_the_official_ones(name: str, percent: float) -> None:
    vectors = {key: list(vector(f"knots/tau/{key}")) for key in ("a.weight", "b.weight")}
    for key, found in merge_matrices(vectors, KnotsSettings(keep_percent=percent)).items():
        close(0.6 * found, f"knots/{name}/{key}", atol=1e-4)
