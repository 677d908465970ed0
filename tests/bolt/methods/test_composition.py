"""Composed weights equal autograd and finite differences, and take the memory of one network."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.methods import compose_by_autograd
from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods.common import composition
from bolt.methods.common.composition import Composition
from bolt.training.loop import TrainingRecipe, fit
from tests.helpers.waves import plane_wave

SOURCES = 3


def base_of(tower: ImageTower, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: tensor.detach().to(dtype) for name, tensor in tower.named_parameters()}


def random_stacks(
    base: Mapping[str, Tensor], count: int = SOURCES, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: (0.02 * torch.randn(count, tensor.numel(), generator=generator)).to(dtype)
        for name, tensor in base.items()
    }


def random_coefficients(composed: Composition) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(composed.coefficients.shape, generator=generator).to(composed.coefficients)


def set_coefficients(composed: Composition, values: Tensor) -> None:
    with torch.no_grad():
        composed.coefficients.copy_(values)
    composed.tensors(recompute=True)


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(8)).to(dtype)


def loss_of(tower: ImageTower, tensors: Mapping[str, Tensor]) -> Tensor:
    dtype = next(iter(tensors.values())).dtype
    features_BD: Tensor = torch.func.functional_call(tower, dict(tensors), (images(dtype),))
    return features_BD.square().sum()


def test_no_coefficient_is_the_base_bit_for_bit(backbone: Backbone) -> None:
    tower = backbone.tower
    composed = Composition(base_of(tower), random_stacks(base_of(tower)))
    features = torch.func.functional_call(tower, composed.tensors(), (images(),))
    assert torch.equal(features, tower(images()))
    set_coefficients(composed, random_coefficients(composed))
    assert not torch.equal(torch.func.functional_call(tower, composed.tensors(), (images(),)), features)
    set_coefficients(composed, torch.zeros_like(composed.coefficients))
    assert torch.equal(torch.func.functional_call(tower, composed.tensors(), (images(),)), features)


@pytest.mark.parametrize("batches", [1, 2])
def test_loss_and_gradient_are_those_of_the_plain_way(batches: int, backbone: Backbone) -> None:
    """Gradients of several batches add up."""
    base = base_of(backbone.tower)
    stacks = random_stacks(base)
    composed = Composition(base, stacks)
    set_coefficients(composed, random_coefficients(composed))
    plain_NP = composed.coefficients.detach().squeeze(-1).clone().requires_grad_()
    for _ in range(batches):
        loss = loss_of(backbone.tower, composed.tensors())
        expected = loss_of(backbone.tower, compose_by_autograd(base, stacks, plain_NP))
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    scale = float(plain_NP.grad.abs().max())
    torch.testing.assert_close(composed.coefficients.grad.squeeze(-1), plain_NP.grad, rtol=1e-5, atol=1e-5 * scale)


def test_weights_are_composed_once_a_step_and_follow_the_optimiser() -> None:
    """The fused optimiser changes a tensor without raising its version counter."""
    base = {"w": torch.ones(2, 3)}
    stacks = {"w": torch.arange(12.0).view(2, 6)}
    composed = Composition(base, stacks)
    seen: list[Tensor] = []

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        weight = composed.tensors()["w"]
        expected = compose_by_autograd(base, stacks, composed.coefficients.detach().squeeze(-1))["w"]
        torch.testing.assert_close(weight.detach(), expected)
        seen.append(weight.detach().clone())
        return weight.square().sum()

    recipe = TrainingRecipe(epochs=2, batch_size=1, accumulate=2, learning_rate=0.1, warmup_steps=0)
    fit([composed.coefficients], loss_of_rows, lambda epoch: torch.arange(4), recipe)
    assert [torch.equal(one, other) for one, other in pairwise(seen)] == [True, False] * 3 + [True]
    composed.tensors()
    with torch.no_grad():
        composed.tensors()["w"].fill_(7.0)
    assert bool((composed.tensors()["w"] == 7).all()), "coefficients that stay are not composed again"


def test_nothing_but_the_network_itself_is_kept_for_the_backward(backbone: Backbone) -> None:
    base = base_of(backbone.tower)
    stacks = random_stacks(base, count=16)

    def kept(make: str) -> int:
        """Bytes that autograd keeps beyond the weights and the task vectors."""
        storages: dict[int, torch.UntypedStorage] = {}  # kept, so that no address is used twice

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        coefficients = torch.zeros(16, len(base), requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if make == "composed":
                tensors = Composition(base, stacks).tensors()
            elif make == "plain":
                tensors = compose_by_autograd(base, {key: stack.half() for key, stack in stacks.items()}, coefficients)
            else:
                tensors = {name: tensor.clone().requires_grad_() for name, tensor in base.items()}
            loss = loss_of(backbone.tower, tensors)
        own = {tensor.untyped_storage().data_ptr() for tensor in (*tensors.values(), *stacks.values())}
        assert loss.requires_grad
        return sum(storage.nbytes() for address, storage in storages.items() if address not in own)

    model = sum(tensor.nbytes for tensor in base.values())
    assert kept("composed") == kept("fine-tuned")
    assert kept("plain") == kept("composed") + 16 * model


def test_a_weights_gradient_is_contracted_at_once(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_of(backbone.tower)
    composed = Composition(base, random_stacks(base))
    order: list[str] = []
    contract = composition._ComposedTensor.contract
    names = {id(tensor): name for tensor, name in zip(composed._composed, composed.names, strict=True)}

    def watched(tensor: composition._ComposedTensor, gradient: Tensor) -> Tensor:
        order.append(names[id(tensor)])
        return contract(tensor, gradient)

    monkeypatch.setattr(composition._ComposedTensor, "contract", watched)
    seen = backbone.tower.blocks[0].register_forward_hook(  # made before the gradients of the first block
        lambda module, inputs, output: output.register_hook(lambda gradient: order.append("entering block 0")) and None
    )
    try:
        tensors = composed.tensors()
        loss_of(backbone.tower, tensors).backward()
    finally:
        seen.remove()
    entered = order.index("entering block 0")
    assert {name for name in composed.names if name.startswith(("blocks.1.", "ln_post", "proj"))} == set(
        order[:entered]
    )
    assert all(tensor.grad is None for tensor in tensors.values())


def test_tied_coefficients_get_the_sum_of_the_tensors_gradients(backbone: Backbone) -> None:
    base = base_of(backbone.tower)
    gradients = []
    for tied in (False, True):
        composed = Composition(base, random_stacks(base), tied=tied)
        set_coefficients(composed, torch.full_like(composed.coefficients, 0.2))
        loss_of(backbone.tower, composed.tensors()).backward()
        gradients.append(composed.coefficients.grad)
    each, together = gradients
    assert together.shape == (SOURCES, 1, 1)
    torch.testing.assert_close(together, each.sum(dim=1, keepdim=True), rtol=1e-4, atol=1e-4)


def test_clamped_coefficients_are_used_at_the_bound_and_get_no_gradient_outside() -> None:
    base, stacks = {"w": torch.ones(2)}, {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    composed = Composition(base, stacks, bounds=(0.0, 1.0))
    set_coefficients(composed, torch.tensor([-0.5, 0.5, 1.5])[:, None, None])
    weight = composed.tensors()["w"]
    torch.testing.assert_close(weight.detach(), torch.tensor([1 + 1.5 + 5, 1 + 2.0 + 6]))
    weight.sum().backward()
    assert composed.coefficients.grad.flatten().tolist() == [0, 7, 0]


class _WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def test_a_weight_may_get_no_gradient() -> None:
    composed = Composition({"w": torch.ones(2)}, {"w": torch.ones(1, 2)})
    x = torch.ones(2, requires_grad=True)
    _WithoutGradient.apply(x, composed.tensors()["w"]).sum().backward()
    assert x.grad is not None
    assert composed.coefficients.grad is None


def test_groups_of_entries_have_coefficients_of_their_own() -> None:
    """Numbers of the official code, which computes in float16."""
    entries = torch.arange(12).view(3, 4)
    stacks = {"w": torch.stack([plane_wave(3, 4, 0.3, 0.8, t) for t in range(2)]).half().float()}
    composed = Composition({"w": torch.zeros(3, 4)}, stacks, {"w": (7 * entries) % 3}, group_count=3)
    set_coefficients(composed, plane_wave(2, 3, 0.5, 0.9, 0.1)[:, None])
    expected = [
        [0.474854, 1.575195, 1.293945, -0.076843],
        [1.209961, 1.425781, 0.229492, -0.168823],
        [1.208984, 0.479492, 0.622070, -0.377441],
    ]
    torch.testing.assert_close(composed.tensors()["w"].detach(), torch.tensor(expected), rtol=0, atol=6e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_grouped_gradients_are_those_of_gathered_ones(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack is converted a few columns at a time, and one group has no entry."""
    monkeypatch.setitem(composition._CONVERTED_AT_ONCE, "cpu", 4 * SOURCES)
    generator = torch.Generator().manual_seed(2)
    base = {"w": torch.randn(5, 7, generator=generator)}
    stack = torch.randn(SOURCES, 35, generator=generator).to(dtype)
    groups = torch.tensor([0, 1, 3])[torch.randint(3, (5, 7), generator=generator)]
    composed = Composition(base, {"w": stack.clone()}, {"w": groups}, group_count=4)
    set_coefficients(composed, random_coefficients(composed))
    lambda_NK = composed.coefficients.detach()[:, 0].clone().requires_grad_()
    expected = base["w"] + (lambda_NK[:, groups] * stack.float().view(SOURCES, 5, 7)).sum(dim=0)
    torch.testing.assert_close(composed.tensors()["w"], expected)
    for weight in (composed.tensors()["w"], expected):
        weight.pow(3).sum().backward()
    assert composed.coefficients.grad is not None
    torch.testing.assert_close(composed.coefficients.grad[:, 0], lambda_NK.grad, rtol=1e-5, atol=1e-4)
    assert composed.coefficients.grad[:, 0, 2].count_nonzero() == 0


def test_half_precision_stacks_are_summed_in_float32(backbone: Backbone) -> None:
    base = base_of(backbone.tower)
    halves = random_stacks(base, dtype=torch.float16)
    made, gradients = [], []
    for stacks in (halves, {name: stack.float() for name, stack in halves.items()}):
        composed = Composition(base, stacks)
        set_coefficients(composed, random_coefficients(composed))
        made.append(composed.tensors())
        loss_of(backbone.tower, made[-1]).backward()
        gradients.append(composed.coefficients.grad)
    torch.testing.assert_close(*made, rtol=0, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


def test_a_half_precision_base_is_rounded_once(backbone: Backbone) -> None:
    base = base_of(backbone.tower, torch.bfloat16)
    stacks = random_stacks(base)
    composed, exact = (Composition(tensors, stacks) for tensors in (base, {n: t.float() for n, t in base.items()}))
    assert composed.coefficients.dtype == torch.float32
    for each in (composed, exact):
        set_coefficients(each, random_coefficients(exact))
    for name, tensor in composed.tensors().items():
        assert torch.equal(tensor, exact.tensors()[name].bfloat16())
    composed.tensors()["proj.weight"].square().sum().backward()
    assert composed.coefficients.grad.isfinite().all()


def test_autocast_does_not_reach_the_sums(backbone: Backbone) -> None:
    base = base_of(backbone.tower)
    gradients, made = [], []
    for enabled in (False, True):
        composed = Composition(base, random_stacks(base))
        set_coefficients(composed, random_coefficients(composed))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            made.append(composed.tensors())
            (1.1 * made[-1]["proj.weight"]).square().sum().backward()
        gradients.append(composed.coefficients.grad)
    torch.testing.assert_close(*made, rtol=0, atol=0)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
