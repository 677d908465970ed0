"""Orthonormal bases of the sources' singular directions, and TSV-M's merge. Pure linear algebra.

Every matrix is in open_clip's own orientation.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source, r columns of a basis, N sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.spectral.directions import Directions, truncate_directions
from bolt.spectral.orthogonal import complete_columns, paired_polar_factors, whiten


@dataclass(frozen=True)
class Basis:
    """Paired orthonormal columns: u (m, r) of the output space, v (n, r) of the input space."""

    u: Tensor
    v: Tensor

    @property
    def rank(self) -> int:
        """Number of coefficients, r."""
        return self.u.shape[1]


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

    It has a column for every direction, dependent ones included; see :func:`bolt.spectral.orthogonal.whiten` for how
    far from orthonormal the columns then are.
    """
    u, _, v = _stacked(directions, matrix_shape)
    return Basis(whiten(u, epsilon), whiten(v, epsilon))


def padded_basis(basis: Basis, width: int, generator: torch.Generator) -> Basis:
    """An orthonormal basis followed by arbitrary directions, ``width`` columns in all or min(m, n) if that is fewer.

    An empty basis stays empty: a matrix that no source has changed is not adapted.
    """
    wanted = min(width, basis.u.shape[0], basis.v.shape[0])
    if not 0 < basis.rank < wanted:
        return basis
    return Basis(complete_columns(basis.u, wanted, generator), complete_columns(basis.v, wanted, generator))


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


def tsv_merge(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> Tensor:
    """TSV-M's merged update (m, n) of several tasks: their leading directions, orthogonalised together.

    Each of N tasks gives its min(m, n) // N leading directions (at least one; longer ones are cut) with its own
    singular values: U_perp diag(s) V_perp^T with the polar factors of both stacks. The scale is the caller's
    (Gargiulo et al., "Task Singular Vectors", 2025). Directions that others span are left out with their singular
    values, as in :func:`orthonormal_basis`: a task given twice counts once.
    """
    u, s, v = _stacked(
        truncate_directions(directions, max(1, min(matrix_shape) // max(1, len(directions)))), matrix_shape
    )
    u_factor, v_factor, kept = paired_polar_factors(u, v)
    return u_factor * s[kept] @ v_factor.mT
