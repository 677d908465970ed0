"""The linear algebra: reference values, and the properties that every basis must have."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bolt.seeds import torch_generator
from bolt.spectral.bases import (
    Basis,
    diagonal_coefficients,
    orthonormal_basis,
    padded_basis,
    pretrained_basis,
    random_basis,
    tsv_merge,
    whitened_basis,
)
from bolt.spectral.directions import Directions, directions_per_source, top_directions
from bolt.spectral.orthogonal import complete_columns, polar_factor, whiten
from bolt.spectral.sources import PooledBasis
from tests.helpers import waves
from tests.helpers.towers import GivenSources, merge


def reference_matrices() -> list[Tensor]:
    """Return three 6 x 9 float64 matrices with known results."""
    i, j = torch.arange(6, dtype=torch.float64)[:, None], torch.arange(9, dtype=torch.float64)
    return [
        torch.sin((0.7 + 0.3 * t) * i + (1.3 - 0.2 * t) * j + 0.1 + t)
        * (1 + 0.5 * torch.sin(1.9 * i + 0.31 * (t + 1) * j + 2))
        for t in range(3)
    ]


close = partial(waves.close, rtol=1e-6, atol=1e-6)


def random_matrix(m: int, n: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_orthonormal(basis: Basis, tolerance: float) -> None:
    for columns in (basis.u, basis.v):
        identity = torch.eye(basis.rank, dtype=columns.dtype)
        torch.testing.assert_close(columns.mT @ columns, identity, rtol=0, atol=tolerance)


def test_tsv_merge_reproduces_the_reference_and_keeps_the_singular_values() -> None:
    """More directions are passed than it uses."""
    matrices = reference_matrices()
    merged = tsv_merge([top_directions(matrix, 5) for matrix in matrices], (6, 9))
    assert float(merged.norm()) == pytest.approx(9.067336, abs=1e-6)
    values = torch.linalg.svdvals(merged)
    close(values, [4.022961, 3.904365, 3.883092, 3.632517, 3.422903, 3.286100])
    first_row = [1.466714, 2.121826, -0.105906, -2.015951, -1.308449, 0.551048, 1.094703, 0.184301, -0.520232]
    close(merged[0], first_row)
    kept = torch.cat([torch.linalg.svdvals(matrix)[:2] for matrix in matrices]).sort(descending=True).values
    torch.testing.assert_close(values, kept)


def test_tsv_merge_of_one_task_of_copies_and_of_nothing() -> None:
    matrix = reference_matrices()[0]
    torch.testing.assert_close(tsv_merge([top_directions(matrix, 6)], (6, 9)), matrix)
    one, zero = top_directions(matrix, 3), top_directions(torch.zeros(6, 9, dtype=torch.float64), 3)
    best = one.u * one.s @ one.v.mT
    torch.testing.assert_close(tsv_merge([one, one], (6, 9)), best)
    torch.testing.assert_close(tsv_merge([zero, one], (6, 9)), best)
    assert torch.equal(tsv_merge([zero, zero], (6, 9)), torch.zeros(6, 9, dtype=torch.float64))
    many = [top_directions(random_matrix(3, 2, seed), 2) for seed in range(5)]
    assert torch.linalg.matrix_rank(tsv_merge(many, (3, 2))) == 2, "more tasks than directions fill the matrix"


def test_basis_and_coefficients_reproduce_the_reference() -> None:
    matrices = reference_matrices()
    directions = [top_directions(matrix, 2) for matrix in matrices]
    for side, expected in {
        "u": [1.611072, 1.584332, 0.691240, 0.617344, 0.161557, 0.096489],
        "v": [1.632126, 1.524679, 0.779756, 0.588177, 0.236122, 0.042323],
    }.items():
        close(torch.linalg.svdvals(torch.cat([getattr(d, side) for d in directions], dim=1)), expected)
    basis = orthonormal_basis(directions, (6, 9))
    per_source = [diagonal_coefficients(basis, matrix) for matrix in matrices]
    close(per_source[0], [2.778205, 2.744313, 1.042789, 0.639847, -0.002782, -0.025782])
    close(per_source[1], [0.582302, -0.260159, 2.003261, 1.925041, 0.629085, 0.510904])
    close(per_source[2], [-0.683739, 0.209139, 0.059983, 0.554607, 2.820062, 2.012815])
    pooled = torch.stack(per_source).mean(dim=0)
    close(pooled, [0.892256, 0.897764, 1.035344, 1.039832, 1.148788, 0.832645])
    update = merge(torch.zeros(6, 9, dtype=torch.float64), basis, pooled)
    assert float(update.norm()) == pytest.approx(2.401729, abs=1e-6)
    assert float(update.norm()) == pytest.approx(float(pooled.norm()))


@pytest.mark.parametrize(("m", "n"), [(20, 31), (31, 20), (20, 20), (1, 7), (7, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_are_the_leading_singular_triplets(m: int, n: int, dtype: torch.dtype) -> None:
    matrix = random_matrix(m, n, 0, dtype)
    found = top_directions(matrix, 5)
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    k = min(5, m, n)
    assert (found.u.shape, found.s.shape, found.v.shape) == ((m, k), (k,), (n, k))
    assert {part.dtype for part in (found.u, found.s, found.v)} == {dtype}
    tolerance: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(found.s, s[:k], **tolerance)
    torch.testing.assert_close(found.u * found.s @ found.v.mT, u[:, :k] * s[:k] @ vh[:k], **tolerance)


def test_the_gram_route_is_as_accurate_as_a_float64_decomposition() -> None:
    """Return a matrix whose singular values span three orders of magnitude, as those of task vectors do."""
    u, v = (torch.linalg.qr(random_matrix(size, 40, size, torch.float64))[0] for size in (96, 64))
    matrix = (u * torch.logspace(0, -3, 40, dtype=torch.float64) @ v.mT).float()
    found = top_directions(matrix, 12)
    exact_u, _, exact_vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    for ours, theirs in ((found.u, exact_u), (found.v, exact_vh.mT)):
        cosines = (ours.double() * theirs[:, :12]).sum(dim=0).abs()
        assert float((1 - cosines).max()) < 1e-12 + 1e-7


def test_signs_are_fixed() -> None:
    matrix = random_matrix(9, 6, 1)
    ours, flipped = top_directions(matrix, 4), top_directions(-matrix, 4)
    peaks = ours.u.gather(0, ours.u.abs().argmax(dim=0, keepdim=True))
    assert bool((peaks > 0).all())
    torch.testing.assert_close(ours.u, flipped.u)
    torch.testing.assert_close(ours.v, -flipped.v)


def test_directions_stop_at_the_rank() -> None:
    matrix = random_matrix(30, 3, 0) @ random_matrix(3, 20, 1)
    assert top_directions(matrix, 8).u.shape == (30, 3)
    assert top_directions(torch.zeros(4, 5), 2).v.shape == (5, 0)


def test_what_has_no_directions_no_basis_or_no_polar_factor_is_refused() -> None:
    for value in (math.nan, math.inf):
        matrix = random_matrix(4, 4, 0)
        matrix[2, 1] = value
        with pytest.raises(ValueError, match="NaN or infinite"):
            top_directions(matrix, 2)
    with pytest.raises(ValueError, match="not 0"):
        top_directions(torch.eye(2), 0)
    with pytest.raises(ValueError, match=r"\(4, 2\).*\(5, 4\)"):
        orthonormal_basis([top_directions(random_matrix(4, 5, 0), 2)], (5, 4))
    for stack in (torch.ones(4, 2), torch.zeros(4, 2), torch.eye(3)[:2]):
        with pytest.raises(ValueError, match="dependent columns"):
            polar_factor(stack)


@pytest.mark.parametrize(
    ("top_k", "rank_limit", "sources", "expected"),
    [(12, 768, 16, 12), (12, 512, 16, 12), (60, 768, 16, 48), (60, 512, 16, 32), (12, 32, 16, 2), (12, 8, 16, 1)],
)
def test_directions_per_source(top_k: int, rank_limit: int, sources: int, expected: int) -> None:
    assert directions_per_source(top_k, rank_limit, sources) == expected


shapes = st.tuples(st.integers(1, 14), st.integers(1, 14))


@st.composite
def stacks(draw: st.DrawFn) -> tuple[list[Directions], tuple[int, int]]:
    """Draw the directions of a few sources for one matrix. Some have low rank, are zero, or copy another source."""
    m, n = draw(shapes)
    matrices: list[Tensor] = []
    for index in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["full", "low rank", "zero", "copy", "scaled copy"]))
        if kind == "zero":
            matrices.append(torch.zeros(m, n))
        elif kind.endswith("copy") and matrices:
            matrices.append(matrices[0] * (1 if kind == "copy" else -3.7))
        elif kind == "low rank":
            matrices.append(random_matrix(m, 1, index) @ random_matrix(1, n, index + 50))
        else:
            matrices.append(random_matrix(m, n, index + 100 * draw(st.integers(0, 3))))
    return [top_directions(matrix, draw(st.integers(1, 6))) for matrix in matrices], (m, n)


@given(stacks())
@settings(max_examples=150, deadline=None)
def test_a_basis_is_orthonormal_whatever_the_sources_are(stack: tuple[list[Directions], tuple[int, int]]) -> None:
    directions, (m, n) = stack
    basis = orthonormal_basis(directions, (m, n))
    assert basis.u.shape == (m, basis.rank)
    assert basis.v.shape == (n, basis.rank)
    assert basis.rank <= min(m, n, sum(len(d.s) for d in directions))
    assert_orthonormal(basis, 2e-6)


@given(stacks(), st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_signs_of_directions_do_not_matter(stack: tuple[list[Directions], tuple[int, int]], seed: int) -> None:
    directions, shape = stack
    generator = torch.Generator().manual_seed(seed)
    flipped = []
    for d in directions:
        sign = torch.randint(0, 2, (len(d.s),), generator=generator) * 2.0 - 1
        flipped.append(Directions(d.u * sign, d.s, d.v * sign))
    matrix = random_matrix(*shape, 3)
    one, other = orthonormal_basis(directions, shape), orthonormal_basis(flipped, shape)
    assert one.rank == other.rank
    s_one, s_other = diagonal_coefficients(one, matrix), diagonal_coefficients(other, matrix)
    torch.testing.assert_close(s_one, s_other, rtol=1e-4, atol=1e-4)
    zero = torch.zeros(shape)
    torch.testing.assert_close(merge(zero, one, s_one), merge(zero, other, s_other), rtol=1e-4, atol=1e-4)


@given(shapes, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_diagonal_solves_the_least_squares_problem(shape: tuple[int, int], seed: int) -> None:
    m, n = shape
    r = min(m, n, 4)
    basis = Basis(*(torch.linalg.qr(random_matrix(size, r, seed + size, torch.float64))[0] for size in shape))
    matrix = random_matrix(m, n, seed, torch.float64)
    terms = torch.stack([torch.outer(basis.u[:, j], basis.v[:, j]).flatten() for j in range(r)], dim=1)
    best = torch.linalg.lstsq(terms, matrix.flatten()[:, None]).solution[:, 0]
    torch.testing.assert_close(diagonal_coefficients(basis, matrix), best, rtol=1e-9, atol=1e-9)


def test_duplicate_and_zero_sources_change_nothing() -> None:
    one, other = (top_directions(random_matrix(12, 9, seed), 3) for seed in (0, 1))
    zero = top_directions(torch.zeros(12, 9), 3)
    single, double = (orthonormal_basis(stack, (12, 9)) for stack in ([one, other], [zero, one, other, one, zero]))
    assert double.rank == 6
    torch.testing.assert_close(single.u, double.u)
    torch.testing.assert_close(single.v, double.v)


def test_zero_task_vectors_alone_make_an_empty_basis() -> None:
    basis = orthonormal_basis([top_directions(torch.zeros(5, 4), 3)] * 2, (5, 4))
    assert (basis.u.shape, basis.v.shape, basis.rank) == ((5, 0), (4, 0), 0)
    assert diagonal_coefficients(basis, torch.ones(5, 4)).shape == (0,)
    assert torch.equal(merge(torch.ones(5, 4), basis, torch.zeros(0)), torch.ones(5, 4))
    assert orthonormal_basis([], (5, 4)).rank == 0


def test_more_directions_than_the_matrix_has_fill_its_rank_and_stop() -> None:
    basis = orthonormal_basis([top_directions(random_matrix(5, 4, seed), 3) for seed in range(6)], (5, 4))
    assert basis.rank == 4
    assert_orthonormal(basis, 1e-6)


def test_near_duplicates_are_kept_and_orthonormal() -> None:
    """Two sources that differ little still span more than one source, and the polar factor separates them."""
    base = random_matrix(40, 30, 0)
    for distance in (1e-1, 1e-2, 1e-3, 1e-4):
        near = base + distance * random_matrix(40, 30, 1)
        basis = orthonormal_basis([top_directions(base, 2), top_directions(near, 2)], (40, 30))
        assert basis.rank == 4, distance
        assert_orthonormal(basis, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4])
def test_the_polar_factor_is_p_times_q(scale: float) -> None:
    """Both ways are tested: the Gram matrix of well-conditioned stacks, and the SVD of other stacks."""
    stack = random_matrix(20, 5, 0, torch.float64)
    stack[:, 4] = stack[:, 3] + scale * stack[:, 4]
    p, _, qh = torch.linalg.svd(stack, full_matrices=False)
    torch.testing.assert_close(polar_factor(stack), p @ qh, rtol=1e-8, atol=1e-8)


@given(st.integers(1, 16), st.data())
@settings(max_examples=60, deadline=None)
def test_whitening_tends_to_the_polar_factor(m: int, data: st.DataObject) -> None:
    """The stacks have singular values in [0.5, 2], and 1 - s / sqrt(s^2 + eps) is below 2 eps at s = 0.5."""
    r = data.draw(st.integers(0, m))
    p, q = (torch.linalg.qr(random_matrix(size, r, size + r, torch.float64))[0] for size in (m, max(r, 1)))
    values = torch.tensor(data.draw(st.lists(st.floats(0.5, 2), min_size=r, max_size=r)), dtype=torch.float64)
    stack = p * values @ q[:, :r].mT if r else torch.zeros(m, 0, dtype=torch.float64)
    for epsilon in (1e-2, 1e-5, 1e-9):
        torch.testing.assert_close(whiten(stack, epsilon), polar_factor(stack), rtol=0, atol=2 * epsilon + 1e-12)


def test_whitening_shrinks_each_singular_value_as_it_says() -> None:
    stack, epsilon = random_matrix(9, 4, 0, torch.float64), 0.3
    p, s, qh = torch.linalg.svd(stack, full_matrices=False)
    torch.testing.assert_close(whiten(stack, epsilon), p * (s / (s**2 + epsilon).sqrt()) @ qh)


@pytest.mark.parametrize("epsilon", [1e-10, 1e-4])
def test_a_direction_given_twice_is_whitened_into_two_halves(epsilon: float) -> None:
    unit = torch.nn.functional.normalize(random_matrix(7, 1, 0, torch.float64), dim=0)
    expected = unit / math.sqrt(2 + epsilon)
    torch.testing.assert_close(whiten(torch.cat([unit, unit], dim=1), epsilon), expected.expand(7, 2))


@given(stacks())
@settings(max_examples=60, deadline=None)
def test_a_whitened_basis_is_finite_whatever_the_sources_are(stack: tuple[list[Directions], tuple[int, int]]) -> None:
    directions, shape = stack
    basis = whitened_basis(directions, shape, 1e-6)
    assert basis.rank == sum(len(source.s) for source in directions)
    for columns in (basis.u, basis.v):
        assert bool(torch.isfinite(columns).all())
        assert columns.numel() == 0 or float(torch.linalg.matrix_norm(columns.double(), 2)) < 1 + 1e-5


@given(stacks(), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_a_padded_basis_begins_with_its_own(stack: tuple[list[Directions], tuple[int, int]], width: int) -> None:
    directions, shape = stack
    basis = orthonormal_basis(directions, shape)
    wide = padded_basis(basis, width, torch_generator("test"))
    assert wide.rank == (max(basis.rank, min(width, *shape)) if basis.rank else 0)
    assert torch.equal(wide.u[:, : basis.rank], basis.u)
    assert torch.equal(wide.v[:, : basis.rank], basis.v)
    assert_orthonormal(wide, 3e-6)


def test_padding_follows_its_generator() -> None:
    columns = torch.linalg.qr(random_matrix(9, 3, 0))[0]
    one, again, other = (complete_columns(columns, 7, torch_generator("test", key)) for key in ("a", "a", "b"))
    assert torch.equal(one, again)
    assert not torch.equal(one[:, 3:], other[:, 3:])


def test_a_pretrained_basis_is_the_leading_or_the_trailing_singular_triplets() -> None:
    weight = random_matrix(10, 6, 0)
    u, s, _ = torch.linalg.svd(weight.double(), full_matrices=False)
    for trailing, kept in ((False, slice(0, 2)), (True, slice(4, 6))):
        basis = pretrained_basis(weight, 2, trailing)
        torch.testing.assert_close(diagonal_coefficients(basis, weight), s[kept].float())
        projector = u[:, kept] @ u[:, kept].mT
        torch.testing.assert_close((basis.u @ basis.u.mT).double(), projector, atol=1e-5, rtol=0)


def test_a_random_basis_is_orthonormal_and_follows_its_generator() -> None:
    one, again, other = (random_basis((10, 6), 6, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert_orthonormal(one, 1e-6)
    assert torch.equal(one.u, again.u)
    assert not torch.equal(one.u, other.u)


@given(st.integers(1, 6), shapes, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_pooling_coefficients_equals_pooling_task_vectors(count: int, shape: tuple[int, int], seed: int) -> None:
    matrices = [random_matrix(*shape, seed + index, torch.float64) for index in range(count)]
    start = GivenSources({str(index): {"any": matrix} for index, matrix in enumerate(matrices)}).pooled_basis("any", 3)
    assert isinstance(start, PooledBasis)
    separately = torch.stack([diagonal_coefficients(start.basis, matrix) for matrix in matrices]).mean(dim=0)
    error = (start.pooled - separately).norm() / separately.norm().clamp_min(1e-12)
    assert float(error) < 1e-5  # the mean of task vectors is float32


def test_a_basis_has_as_many_columns_as_its_sources_may_give() -> None:
    sources = GivenSources({str(seed): {"any": random_matrix(24, 16, seed)} for seed in range(4)})
    start = sources.pooled_basis("any", 12)
    assert start.basis.rank == 4 * (16 // 4)
