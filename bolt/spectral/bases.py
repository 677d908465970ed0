"""Task vectors -> singular directions -> orthonormal bases -> pooled coefficients. Pure linear algebra.

Every matrix is in open_clip's own orientation. Decompositions run in float64, results come back in the dtype of the
input: fine-tuned weights are float32, and twice the digits are what it costs to work with Gram matrices, which are
several times smaller than what they stand for.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source, r columns of a basis, N sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import torch
from torch import Tensor

from bolt.spectral.orthogonal import completed, paired_polar_factors, whitened

GRID = 2.0**-40
"""Step to which task vectors are rounded before they are summed, 9e-13; see :func:`add_task_vector`."""

_LARGEST = 64.0
_ROUNDER = 1.5 * 2.0**52 * GRID


@dataclass(frozen=True)
class Directions:
    """Leading singular directions of one matrix: u (m, k), s (k,) descending, v (n, k)."""

    u: Tensor
    s: Tensor
    v: Tensor


@dataclass(frozen=True)
class Basis:
    """Paired orthonormal columns: u (m, r) of the output space, v (n, r) of the input space."""

    u: Tensor
    v: Tensor

    @property
    def rank(self) -> int:
        """Number of coefficients, r."""
        return self.u.shape[1]


@dataclass(frozen=True)
class PooledBasis:
    """What all sources together say about one weight matrix: the basis, and the mean of their coefficients (r,)."""

    basis: Basis
    pooled: Tensor


class SpectralSources(Interface):
    """The part of the sources' interface that a basis is made of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        """Per source, its leading directions of one matrix."""

    def mean_task_vector(self, matrix: str) -> Tensor:
        """Mean over the sources of one matrix's task vector, (m, n)."""


def top_directions(matrix: Tensor, k: int) -> Directions:
    """The leading ``k`` singular directions of a matrix (m, n), or all it has where those are fewer.

    "All it has" is the numerical rank: directions whose singular value is rounding noise of the matrix's own dtype are
    left out, so a zero task vector has none. The sign is fixed: the entry of largest magnitude of each u is
    positive.

    Raises ``ValueError`` for a matrix with NaN or infinite entries, or ``k`` below one.
    """
    if k < 1:
        raise ValueError(f"at least one direction has to be asked for, not {k}")
    if not torch.isfinite(matrix).all():
        raise ValueError("a matrix with NaN or infinite entries has no singular directions")
    tall = matrix.double() if matrix.shape[0] >= matrix.shape[1] else matrix.double().mT
    noise = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    left, s, right = (_svd if matrix.dtype == torch.float64 else _svd_by_gram)(tall, k, noise)
    u, v = (left, right) if matrix.shape[0] >= matrix.shape[1] else (right, left)
    if len(s):
        peak = u.gather(0, u.abs().argmax(dim=0, keepdim=True))
        u, v = u * peak.sign(), v * peak.sign()
    return Directions(*(part.to(matrix.dtype).contiguous() for part in (u, s, v)))


def _svd(tall: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Leading singular triplets, those with values up to ``noise`` times the largest left out."""
    left, s, right_h = torch.linalg.svd(tall, full_matrices=False)
    count = min(k, int((s > noise * s[0]).sum()))
    return left[:, :count], s[:count], right_h[:count].mT


def _svd_by_gram(tall: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same through the eigenvectors of the smaller Gram matrix, in a fraction of the time.

    Squaring loses half of float64's digits, which leaves those that float32 data has.
    """
    values, vectors = torch.linalg.eigh(tall.mT @ tall)
    s = values.flip(0).clamp_min(0).sqrt()
    count = min(k, int((s > noise * s[0]).sum()))
    right = vectors.flip(1)[:, :count]
    return tall @ right / s[:count], s[:count], right


def directions_per_source(top_k: int, rank_limit: int, sources: int) -> int:
    """How many directions each source gives to a matrix with ``rank_limit = min(m, n)``."""
    return min(top_k, max(1, rank_limit // sources))


def orthonormal_basis(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> Basis:
    """One orthonormal basis from all sources' directions of a matrix (m, n): the polar factors of both stacks.

    Columns are ordered by source, then by singular value, and are paired: column j of u and of v descend from the
    same direction. The columns are orthonormal whatever the sources are: a direction that the ones before it already
    span, in u or in v, is left out together with its partner. So a source that is an exact copy of another, a zero
    task vector, and any directions beyond min(m, n) add no column, and ``rank`` says how many are left (perhaps none).
    (The released code fills such gaps with arbitrary directions instead; so does :func:`padded`.)
    """
    u, _, v = _stacked(directions, matrix_shape)
    u_factor, v_factor, _ = paired_polar_factors(u, v)
    return Basis(u_factor, v_factor)


def whitened_basis(directions: Sequence[Directions], matrix_shape: tuple[int, int], epsilon: float) -> Basis:
    """The paper's other form of the basis: both stacks whitened, X (X^T X + epsilon I)^(-1/2).

    It has a column for every direction, dependent ones included; see :func:`bolt.spectral.orthogonal.whitened` for how
    far from orthonormal the columns then are.
    """
    u, _, v = _stacked(directions, matrix_shape)
    return Basis(whitened(u, epsilon), whitened(v, epsilon))


def padded(basis: Basis, width: int, generator: torch.Generator) -> Basis:
    """An orthonormal basis followed by arbitrary directions, ``width`` columns in all or min(m, n) if that is fewer.

    An empty basis stays empty: a matrix that no source has changed is not adapted.
    """
    wanted = min(width, basis.u.shape[0], basis.v.shape[0])
    if not 0 < basis.rank < wanted:
        return basis
    return Basis(completed(basis.u, wanted, generator), completed(basis.v, wanted, generator))


def _stacked(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """All sources' u (m, r), s (r,) and v (n, r) side by side. Raises ``ValueError`` for those of another matrix."""
    m, n = matrix_shape
    for source in directions:
        if source.u.shape[0] != m or source.v.shape[0] != n or source.u.shape[1] != source.v.shape[1]:
            raise ValueError(
                f"directions {tuple(source.u.shape)}, {tuple(source.v.shape)} are not those of a matrix {matrix_shape}"
            )
    if not directions:
        return torch.zeros(m, 0), torch.zeros(0), torch.zeros(n, 0)
    u, s, v = (torch.cat([getattr(source, part) for source in directions], dim=-1) for part in ("u", "s", "v"))
    return u, s, v


def diagonal_coefficients(basis: Basis, matrix: Tensor) -> Tensor:
    """diag(U^T M V), (r,), of a matrix (m, n): the least-squares s of ||M - U diag(s) V^T||."""
    return (basis.u * (matrix.to(basis.v.dtype) @ basis.v)).sum(dim=0)


def merge(weight: Tensor, basis: Basis, s: Tensor) -> Tensor:
    """W + U diag(s) V^T, (m, n)."""
    return torch.addmm(weight, basis.u * s, basis.v.mT)


def add_task_vector(total_f64: Tensor, task_vector: Tensor) -> None:
    """Add one source's task vector to a domain's float64 sum, in place, so that it can be taken out again exactly.

    Each number is rounded to a multiple of ``GRID`` first. That changes next to nothing: the difference of two
    float32 weights is such a multiple already unless both are below 8e-6. Sums of up to a hundred of them carry no
    rounding error in float64.

    Raises ``ValueError`` for entries that are not finite or above 64, which no fine-tuned model has.
    """
    total_f64 += _on_grid(task_vector)


def leave_out_mean(total_f64: Tensor, held_out: Sequence[Tensor], count: int) -> Tensor:
    """The float32 mean of a domain's task vectors without the held-out ones.

    ``total_f64`` is the sum over all ``count`` sources of the domain, made by :func:`add_task_vector`; ``held_out``
    are the float32 task vectors of the target and its kin. Pooling is linear, so this is all a target needs.

    Nothing of a held-out model is left in the result: the sum holds multiples of ``GRID``, added without rounding,
    so subtracting one gives, bit for bit, the sum that never contained it. (A plain float64 sum of float32 values,
    53 bits for 24, has the same property as long as the magnitudes spread over less than 29 bits; the grid makes
    it hold always.)
    """
    if count <= len(held_out):
        raise ValueError(f"leaving {len(held_out)} of {count} sources out leaves none")
    rest = total_f64
    for task_vector in held_out:
        own = _on_grid(task_vector)
        rest = torch.sub(rest, own, out=own)
    return (rest / (count - len(held_out))).float()


def _on_grid(task_vector: Tensor) -> Tensor:
    """The float64 multiples of ``GRID`` nearest to a task vector."""
    low, high = torch.aminmax(task_vector)
    if not (float(low) > -_LARGEST and float(high) < _LARGEST):  # true for NaN too
        raise ValueError("a task vector has entries that are NaN, infinite or absurdly large")
    # Numbers next to 1.5 * 2**52 steps are one step apart, so adding that many rounds to whole steps.
    return task_vector.to(torch.float64, copy=True).add_(_ROUNDER).sub_(_ROUNDER)


def pooled_basis(sources: SpectralSources, matrix: str, top_k: int) -> PooledBasis:
    """The basis of all sources' directions of one matrix, and the mean of the sources' coefficients in it.

    The mean over sources of diag(U^T M_i V) equals the diagonal of the mean, so one projection serves for all.
    """
    mean = sources.mean_task_vector(matrix)
    m, n = mean.shape
    per_source = directions_per_source(top_k, min(m, n), len(sources.names))
    basis = orthonormal_basis(leading(sources.directions(matrix, top_k), per_source), (m, n))
    return PooledBasis(basis, diagonal_coefficients(basis, mean))


def leading(directions: Sequence[Directions], k: int) -> list[Directions]:
    """The first ``k`` directions of each source.

    A method asks its sources for equally many directions of every matrix, which is what is stored, and cuts them here.
    """
    return [Directions(source.u[:, :k], source.s[:k], source.v[:, :k]) for source in directions]


def tsv_merge(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> Tensor:
    """TSV-M's merged update (m, n) of several tasks: their leading directions, orthogonalised together.

    Each of N tasks gives its min(m, n) // N leading directions (at least one; longer ones are cut) with its own
    singular values: U_perp diag(s) V_perp^T with the polar factors of both stacks. The scale is the caller's
    (Gargiulo et al., "Task Singular Vectors", 2025). Directions that others span are left out with their singular
    values, as in :func:`orthonormal_basis`: a task given twice counts once.
    """
    u, s, v = _stacked(leading(directions, max(1, min(matrix_shape) // max(1, len(directions)))), matrix_shape)
    u_factor, v_factor, kept = paired_polar_factors(u, v)
    return u_factor * s[kept] @ v_factor.mT
