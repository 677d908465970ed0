"""Orthonormal bases built from the singular directions of several sources, and the merged update of TSV-M.

A source is a model that was fine-tuned on another dataset; its task vector is its weights minus the pre-trained ones.
Every matrix is in open_clip's orientation.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source, r columns of a basis, N sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.spectral.directions import Directions, truncate_directions
from bolt.spectral.orthogonal import complete_columns, paired_polar_factors, whiten


@dataclass(frozen=True)
class Basis:
    """Paired columns, usually orthonormal: u (m, r) in the output space of a matrix, v (n, r) in its input space."""

    u: Tensor
    v: Tensor

    @property
    def rank(self) -> int:
        """Number of columns, r. Each column has one coefficient."""
        return self.u.shape[1]


def orthonormal_basis(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> Basis:
    """Return an orthonormal basis of all sources' directions of a matrix (m, n).

    The u of all directions are put side by side, and so are the v. The basis is the polar factors of these two stacks.
    Columns are ordered by source, then by singular value. Column j of u and column j of v come from the same direction.

    A direction is left out if its u or its v lies in the span of the earlier directions. So an exact copy of another
    source, a zero task vector, and directions beyond min(m, n) add no column, and the columns are always orthonormal.
    ``rank`` is the number of columns and may be 0. The BOLT authors' code adds arbitrary columns in place of the
    directions left out, as :func:`padded_basis` does.
    """
    u, _, v = _stacked(directions, matrix_shape)
    u_factor, v_factor, _ = paired_polar_factors(u, v)
    return Basis(u_factor, v_factor)


def whitened_basis(directions: Sequence[Directions], matrix_shape: tuple[int, int], epsilon: float) -> Basis:
    """Return the BOLT paper's second form of the basis: whitened stacks X (X^T X + epsilon I)^(-1/2) for u and for v.

    The basis has one column for every direction. The columns of linearly dependent directions are not orthonormal; see
    :func:`bolt.spectral.orthogonal.whiten`.
    """
    u, _, v = _stacked(directions, matrix_shape)
    return Basis(whiten(u, epsilon), whiten(v, epsilon))


def padded_basis(basis: Basis, width: int, generator: torch.Generator) -> Basis:
    """Return a basis with random orthonormal columns added, so that it has min(``width``, m, n) columns.

    An empty basis stays empty, because a matrix that no source has changed is not adapted.
    """
    wanted = min(width, basis.u.shape[0], basis.v.shape[0])
    if not 0 < basis.rank < wanted:
        return basis
    return Basis(complete_columns(basis.u, wanted, generator), complete_columns(basis.v, wanted, generator))


def pretrained_basis(weight: Tensor, width: int, trailing: bool = False) -> Basis:
    """Return the leading (or trailing) ``width`` singular directions of a pre-trained weight matrix (m, n)."""
    u, _, v_h = torch.linalg.svd(weight.double(), full_matrices=False)
    first = u.shape[1] - width if trailing else 0
    return Basis(*(part[:, first : first + width].to(weight.dtype).contiguous() for part in (u, v_h.mT)))


def random_basis(matrix_shape: tuple[int, int], width: int, generator: torch.Generator) -> Basis:
    """Return a basis of ``width`` random columns for a matrix (m, n); u and v are drawn independently, on the CPU."""
    return Basis(*(complete_columns(torch.zeros(rows, 0), width, generator) for rows in matrix_shape))


def _stacked(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate all sources' u (m, r), s (r,) and v (n, r). Raises ``ValueError`` if a shape does not fit."""
    m, n = matrix_shape
    for source in directions:
        if source.u.shape[0] != m or source.v.shape[0] != n or source.u.shape[1] != source.v.shape[1]:
            raise ValueError(
                f"directions of the shapes {tuple(source.u.shape)} and {tuple(source.v.shape)} do not fit a matrix of "
                f"the shape {matrix_shape}"
            )
    if not directions:
        return torch.zeros(m, 0), torch.zeros(0), torch.zeros(n, 0)
    u, s, v = (torch.cat([getattr(source, part) for source in directions], dim=-1) for part in ("u", "s", "v"))
    return u, s, v


def diagonal_coefficients(basis: Basis, matrix: Tensor) -> Tensor:
    """Return the coefficients s (r,) of a matrix M in a basis: diag(U^T M V).

    For orthonormal columns, this s minimises ||M - U diag(s) V^T||.
    """
    return (basis.u * (matrix.to(basis.v.dtype) @ basis.v)).sum(dim=0)


def tsv_merge(directions: Sequence[Directions], matrix_shape: tuple[int, int]) -> Tensor:
    """Return TSV-M's merged update (m, n), unscaled (Gargiulo et al., "Task Singular Vectors", 2025).

    Each of N tasks contributes its min(m, n) // N leading directions (at least one) with their singular values. The
    update is U_perp diag(s) V_perp^T, where U_perp and V_perp are the polar factors of the stacked directions. As in
    :func:`orthonormal_basis`, linearly dependent directions are left out together with their singular values, so a task
    that is given twice counts once.
    """
    share = max(1, min(matrix_shape) // max(1, len(directions)))
    u, s, v = _stacked(truncate_directions(directions, share), matrix_shape)
    u_factor, v_factor, kept = paired_polar_factors(u, v)
    return u_factor * s[kept] @ v_factor.mT
