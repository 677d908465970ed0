"""The interface of the source models, and the basis of one weight matrix made of all of them.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source, r columns of a basis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from typing import Protocol as Interface

from torch import Tensor

from bolt.seeds import torch_generator
from bolt.spectral.bases import Basis, diagonal_coefficients, orthonormal_basis, padded_basis, whitened_basis
from bolt.spectral.directions import Directions, directions_per_source, truncate_directions


@dataclass(frozen=True)
class PooledBasis:
    """What all sources together say about one weight matrix: the basis, and the mean of their coefficients (r,)."""

    basis: Basis
    pooled: Tensor


class Sources(Interface):
    """The fine-tuned models of the *other* datasets, seen through their task vectors.

    Whoever builds one leaves the target out (and, under ``leave_group_out``, its kin).
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the source datasets, in a fixed order."""

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        """Per source, the leading ``top_k`` singular directions (or all there are) of one weight matrix (m, n)."""

    def mean_task_vector(self, matrix: str) -> Tensor:
        """The mean over the sources of one weight matrix's task vector, (m, n)."""

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        """One source's whole task vector: every float tensor of the image tower by its open_clip name."""

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        """The basis made of all sources' directions of one matrix, and the sources' mean coefficients in it.

        It depends on the target's sources alone, not on its images, shots or seed, so an implementer may keep it
        from one cell to the next. A class that names this interface as its base inherits the plain computation.
        """
        return pooled_basis(self, matrix, top_k)


@dataclass(frozen=True)
class BasisRecipe:
    """How a basis follows from its sources.

    Attributes:
        top_k, orthogonalisation, whitening_epsilon: as in
            :class:`bolt.methods.common.pooled_start.PooledStartSettings`.
        room: sources that the basis has room for; where there are fewer, arbitrary directions fill it.
    """

    top_k: int
    room: int
    orthogonalisation: Literal["polar", "whitening"] = "polar"
    whitening_epsilon: float = 1e-6


def pooled_basis(sources: Sources, matrix: str, top_k: int) -> PooledBasis:
    """The basis of all sources' directions of one matrix, and the mean of the sources' coefficients in it.

    The mean over sources of diag(U^T M_i V) equals the diagonal of the mean, so one projection serves for all.
    """
    mean = sources.mean_task_vector(matrix)
    m, n = mean.shape
    per_source = directions_per_source(top_k, min(m, n), len(sources.names))
    basis = orthonormal_basis(truncate_directions(sources.directions(matrix, top_k), per_source), (m, n))
    return PooledBasis(basis, diagonal_coefficients(basis, mean))


def build_basis(sources: Sources, recipe: BasisRecipe, matrix: str, shape: Sequence[int]) -> PooledBasis:
    """The basis of one matrix (m, n) in the form that the recipe asks for, and the mean coefficients in it.

    What everyone uses is asked of the sources, who may keep it from cell to cell; the rest is made here.
    """
    m, n = shape
    count, limit = len(sources.names), min(m, n)
    padding, room = recipe.room > count, recipe.room
    per_source = directions_per_source(recipe.top_k, limit, room)
    whitening = recipe.orthogonalisation == "whitening"
    if not whitening and per_source == directions_per_source(recipe.top_k, limit, count):
        start = sources.pooled_basis(matrix, recipe.top_k)
        if not padding:
            return start
        basis = start.basis
    else:
        directions = truncate_directions(sources.directions(matrix, recipe.top_k), per_source)
        if whitening:
            basis = whitened_basis(directions, (m, n), recipe.whitening_epsilon)
        else:
            basis = orthonormal_basis(directions, (m, n))
    if padding and not whitening:  # whitening leaves the missing columns zero, and zero columns do nothing
        basis = padded_basis(basis, per_source * room, torch_generator("padding", matrix))
    return PooledBasis(basis, diagonal_coefficients(basis, sources.mean_task_vector(matrix)))
