"""Truncated singular value decomposition of a task vector's weight matrices.

The arithmetic is float64; results have the dtype of the input. Float32 input is decomposed through its Gram matrix,
which is several times faster. A Gram matrix keeps half of the significant digits. Half of float64's digits are enough,
because float32 has no more.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """Leading singular triplets of one matrix: u (m, k), s (k,) in descending order, v (n, k)."""

    u: Tensor
    s: Tensor
    v: Tensor


def top_directions(matrix: Tensor, k: int) -> Directions:
    """Return the leading ``k`` singular directions of a matrix (m, n); fewer if its numerical rank is lower.

    The numerical rank counts the singular values above the rounding noise of the matrix's dtype, so a zero matrix has
    no direction. The sign is fixed: the entry of largest magnitude of each column of u is positive.

    Raises:
        ValueError: if the matrix has NaN or infinite entries, or ``k`` is below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if not torch.isfinite(matrix).all():
        raise ValueError("a matrix with NaN or infinite entries has no singular directions")
    tall = matrix.double() if matrix.shape[0] >= matrix.shape[1] else matrix.double().mT
    noise = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    left, s, right = (_svd if matrix.dtype == torch.float64 else _svd_by_gram)(tall, k, noise)
    u, v = (left, right) if matrix.shape[0] >= matrix.shape[1] else (right, left)
    sign = u.gather(0, u.abs().argmax(dim=0, keepdim=True)).sign()
    return Directions(*(part.to(matrix.dtype).contiguous() for part in (u * sign, s, v * sign)))


def _svd(tall: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leading singular triplets whose values exceed ``noise`` times the largest value."""
    left, s, right_h = torch.linalg.svd(tall, full_matrices=False)
    count = min(k, int((s > noise * s[0]).sum()))
    return left[:, :count], s[:count], right_h[:count].mT


def _svd_by_gram(tall: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as :func:`_svd`, computed from the eigenvectors of the smaller Gram matrix."""
    values, vectors = torch.linalg.eigh(tall.mT @ tall)
    s = values.flip(0).clamp_min(0).sqrt()
    count = min(k, int((s > noise * s[0]).sum()))
    right = vectors.flip(1)[:, :count]
    return tall @ right / s[:count], s[:count], right


def directions_per_source(top_k: int, rank_limit: int, sources: int) -> int:
    """Return how many directions each source contributes to a basis of at most ``rank_limit`` columns."""
    return min(top_k, max(1, rank_limit // sources))


def truncate_directions(directions: Sequence[Directions], k: int) -> list[Directions]:
    """Return the first ``k`` directions of each source.

    The same number of directions is stored for every matrix, but the basis of a small matrix has room for fewer.
    """
    return [Directions(source.u[:, :k], source.s[:k], source.v[:, :k]) for source in directions]
