"""The spectral layer has the outputs and gradients of dense autograd, and takes a fraction of the work."""

import pytest
import torch
from torch import Tensor, nn

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import matrix_modules
from bolt.spectral.bases import Basis
from bolt.spectral.spectral_linear import NonFiniteTensor, SpectralLinear, attach_coefficients, merge_coefficients
from tests.helpers.towers import RandomSources, merge, random_backbone


def random_linear(m: int, n: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(n, m, bias=bias, device="meta").requires_grad_(False)
    linear.weight = nn.Parameter(torch.randn(m, n, generator=generator, dtype=dtype), requires_grad=False)
    if bias:
        linear.bias = nn.Parameter(torch.randn(m, generator=generator, dtype=dtype), requires_grad=False)
    return linear


def random_spectral(
    m: int = 7, n: int = 5, r: int = 4, dtype: torch.dtype = torch.float64, bias: bool = True
) -> tuple[nn.Linear, Basis, Tensor]:
    generator = torch.Generator().manual_seed(1)
    columns = (torch.randn(size, r, generator=generator, dtype=dtype) for size in (m, n))
    basis = Basis(*(torch.linalg.qr(stack)[0] for stack in columns))
    return random_linear(m, n, dtype, bias), basis, torch.randn(r, generator=generator, dtype=dtype)


def relative_error(actual: Tensor | None, expected: Tensor | None) -> float:
    return float(((actual.double() - expected.double()).norm() / expected.double().norm()).detach())


@pytest.mark.parametrize("leading", [(6,), (2, 3), (2, 1, 3), ()])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_it_equals_dense_autograd(leading: tuple[int, ...], bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    linear, basis, s0 = random_spectral(dtype=dtype, bias=bias)
    module = SpectralLinear(linear, basis, s0)
    x = torch.randn(*leading, 5, dtype=dtype, requires_grad=True)
    s = s0.clone().requires_grad_()
    twin = x.detach().clone().requires_grad_()
    ours = module(x)
    theirs = nn.functional.linear(twin, linear.weight + basis.u * s @ basis.v.mT, linear.bias)
    assert relative_error(ours, theirs) < tolerance
    upstream = torch.randn_like(ours)
    ours.backward(upstream)
    theirs.backward(upstream)
    assert relative_error(module.coefficients.grad, s.grad) < tolerance
    assert relative_error(x.grad, twin.grad) < tolerance
    assert linear.weight.grad is None


def test_gradients_pass_autograds_own_check() -> None:
    linear, basis, s0 = random_spectral()
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, s: Tensor) -> Tensor:
        module = SpectralLinear(linear, basis, s0)
        del module.coefficients
        module.coefficients = s  # type: ignore[assignment]
        return module(x)

    assert torch.autograd.gradcheck(run, (x, s0.clone().requires_grad_()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_whole_tower_gradients_equal_dense_autograd(dtype: torch.dtype, tolerance: float) -> None:
    backbone = random_backbone(quick_gelu=True)
    sources = RandomSources(backbone)
    tower = backbone.tower.to(dtype)
    bases = {name: sources.pooled_basis(name, 2) for name in matrix_modules(tower)}
    start = {name: 0.3 * start.pooled.to(dtype) for name, start in bases.items()}
    adapted, coefficients = attach_coefficients(tower, {name: start.basis for name, start in bases.items()}, start)
    images = torch.randn(4, 3, 32, 32, dtype=dtype)
    adapted(images).square().sum().backward()
    leaves = {name: s.clone().requires_grad_() for name, s in start.items()}
    state = tower.state_dict_open_clip()
    weights = {}
    for name, module in matrix_modules(tower).items():
        basis = Basis(bases[name].basis.u.to(dtype), bases[name].basis.v.to(dtype))
        weight = merge(state[name], basis, leaves[name])
        path = next(path for path, child in tower.named_modules() if child is module)
        weights[f"{path}.weight"] = weight.T if name == PROJECTION else weight
    torch.func.functional_call(tower, weights, (images,)).square().sum().backward()
    for name, coefficient in coefficients.items():
        assert relative_error(coefficient.grad, leaves[name].grad) < 10 * tolerance, name
    ours = torch.cat([coefficient.grad for coefficient in coefficients.values() if coefficient.grad is not None])
    theirs = torch.cat([leaf.grad for leaf in leaves.values() if leaf.grad is not None])
    assert relative_error(ours, theirs) < tolerance


def test_under_autocast_the_coefficients_gradient_stays_float32() -> None:
    linear, basis, s0 = random_spectral(64, 48, 8, torch.float32)
    module = SpectralLinear(linear, basis, s0)
    x = torch.randn(9, 48, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    half, module.coefficients.grad = module.coefficients.grad, None
    assert half.dtype == torch.float32
    assert x.grad.dtype == torch.float32
    module(x).square().sum().backward()
    assert relative_error(half, module.coefficients.grad) < 0.03


def test_a_frozen_layer_still_passes_the_gradient_of_its_input_on() -> None:
    linear, basis, s0 = random_spectral()
    frozen = SpectralLinear(linear, basis, s0).requires_grad_(False)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    frozen(x).sum().backward()
    assert x.grad is not None
    module = SpectralLinear(linear, basis, s0)
    module(x.detach()).sum().backward()
    assert module.coefficients.grad is not None


def test_relu_uses_positive_coefficients_and_never_moves_the_others() -> None:
    linear, basis, s0 = random_spectral()
    s0 = torch.tensor([0.5, -0.5, 0.0, 2.0], dtype=torch.float64)
    module = SpectralLinear(linear, basis, s0, "relu")
    x = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x), SpectralLinear(linear, basis, s0.clamp_min(0))(x))
    module(x).square().sum().backward()
    gradient = module.coefficients.grad
    assert gradient is not None
    assert (gradient == 0).tolist() == [False, True, True, False]


def test_a_basis_of_another_shape_is_refused() -> None:
    linear, basis, s0 = random_spectral()
    with pytest.raises(ValueError, match="does not fit"):
        SpectralLinear(linear, Basis(basis.v, basis.u), s0)
    with pytest.raises(ValueError, match="does not fit"):
        SpectralLinear(linear, basis, s0[:2])


def attached(backbone: Backbone) -> tuple[dict[str, Basis], dict[str, Tensor]]:
    sources = RandomSources(backbone)
    start = {name: sources.pooled_basis(name, 2) for name in matrix_modules(backbone.tower)}
    return {name: each.basis for name, each in start.items()}, {name: each.pooled for name, each in start.items()}


def test_a_merged_tower_computes_what_the_attached_one_does(backbone: Backbone) -> None:
    """Zero coefficients leave the tower as it is, bit for bit."""
    bases, s0 = attached(backbone)
    images = torch.randn(2, 3, 32, 32)
    still, _ = attach_coefficients(backbone.tower, bases, {name: 0 * s for name, s in s0.items()})
    assert torch.equal(still(images), backbone.tower(images))
    adapted, _ = attach_coefficients(backbone.tower, bases, s0, "relu")
    plain = merge_coefficients(adapted)
    torch.testing.assert_close(plain(images), adapted(images))
    assert not any(isinstance(module, SpectralLinear) for module in plain.modules())
    assert not any(parameter.requires_grad for parameter in plain.parameters())


def test_frozen_tensors_are_shared(backbone: Backbone) -> None:
    bases, s0 = attached(backbone)
    adapted, coefficients = attach_coefficients(backbone.tower, bases, s0)
    theirs = {parameter.data_ptr() for parameter in backbone.tower.parameters()}
    own = [parameter for parameter in adapted.parameters() if parameter.data_ptr() not in theirs]
    assert {id(parameter) for parameter in own} == {id(parameter) for parameter in coefficients.values()}
    assert [p for p in adapted.parameters() if p.requires_grad] == own
    assert list(coefficients) == list(bases)


def test_a_matrix_without_directions_stays_plain(backbone: Backbone) -> None:
    bases, s0 = attached(backbone)
    bases[PROJECTION], s0[PROJECTION] = Basis(torch.zeros(32, 0), torch.zeros(16, 0)), torch.zeros(0)
    adapted, coefficients = attach_coefficients(backbone.tower, bases, s0)
    assert PROJECTION not in coefficients
    assert type(adapted.proj) is nn.Linear


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_coefficients_that_are_not_finite_never_become_weights(backbone: Backbone, value: float) -> None:
    bases, s0 = attached(backbone)
    s0[PROJECTION][0] = value
    adapted, _ = attach_coefficients(backbone.tower, bases, s0)
    with pytest.raises(NonFiniteTensor):
        merge_coefficients(adapted)
