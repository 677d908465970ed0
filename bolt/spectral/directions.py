"""Singular directions of a task vector: the truncated singular value decomposition of one weight matrix.

All arithmetic is float64 and results come back in the dtype of the input. A Gram matrix costs less to decompose than
the matrix itself, but it loses half of the digits; of float64's digits, that leaves as many as float32 has.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """Leading singular directions of one matrix: u (m, k), s (k,) descending, v (n, k)."""

    u: Tensor
    s: Tensor
    v: Tensor


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


def truncate_directions(directions: Sequence[Directions], k: int) -> list[Directions]:
    """The first ``k`` directions of each source.

    A method asks its sources for equally many directions of every matrix, which is what is stored, and cuts them here.
    """
    return [Directions(source.u[:, :k], source.s[:k], source.v[:, :k]) for source in directions]
