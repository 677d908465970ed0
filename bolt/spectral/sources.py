"""The interface to the source models, and the computation of a weight matrix's basis from their directions.

Shape legend: m, n a weight matrix's rows and columns, k directions of one source, r columns of a basis.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar
from typing import Protocol as Interface

from torch import Tensor

from bolt.seeds import torch_generator
from bolt.spectral.bases import (
    Basis,
    diagonal_coefficients,
    orthonormal_basis,
    padded_basis,
    pretrained_basis,
    random_basis,
    whitened_basis,
)
from bolt.spectral.directions import Directions, directions_per_source, truncate_directions
from bolt.spectral.task_vector_sum import exact_sum, leave_out_mean

Value = TypeVar("Value")
BasisOf = Literal["sources", "pretrained", "pretrained_trailing", "random"]


@dataclass(frozen=True)
class PooledBasis:
    """The basis of one weight matrix, and ``pooled`` (r,): the mean of all sources' coefficients in this basis."""

    basis: Basis
    pooled: Tensor


class Sources(Interface):
    """Task vectors of the source models: the models fine-tuned on datasets other than the target.

    An implementation leaves out the target's model. Under the rule ``leave_group_out`` of a grid, it also leaves out
    the models of the datasets in the target's group.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the source datasets, in a fixed order."""

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        """Return each source's leading singular directions of one weight matrix (m, n), at most ``top_k``."""

    def mean_task_vector(self, matrix: str) -> Tensor:
        """Return the mean task vector of one weight matrix, (m, n): the mean over the sources."""
        return leave_out_mean(self._sum[matrix], [], len(self.names))

    @cached_property
    def _sum(self) -> dict[str, Tensor]:
        """The sum of the task vectors, by the names of their tensors."""
        return exact_sum(map(self.task_vector, self.names))

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        """Return one source's whole task vector: every float tensor of the image tower by its open_clip name."""

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        """Return the orthonormal basis of all sources' directions of a matrix, and the sources' mean coefficients.

        The coefficients diag(U^T M_i V) are linear in the task vector M_i of source i. So their mean is the projection
        of the mean task vector, and one projection is enough.

        The result depends on the sources alone, not on the target's images, shots or seed, so an implementation may
        cache it. A class that inherits from this interface gets the uncached computation.
        """
        mean = self.mean_task_vector(matrix)
        m, n = mean.shape
        per_source = directions_per_source(top_k, min(m, n), len(self.names))
        basis = orthonormal_basis(truncate_directions(self.directions(matrix, top_k), per_source), (m, n))
        return PooledBasis(basis, diagonal_coefficients(basis, mean))

    def pretrained_basis(self, matrix: str, weight: Tensor, width: int, trailing: bool) -> Basis:
        """Return the leading (or trailing) ``width`` singular directions of a pre-trained matrix ``weight``, (m, n).

        The result depends on the backbone alone, so an implementation may cache it.
        """
        return pretrained_basis(weight, width, trailing)

    def cached(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return ``make()``, whose result must depend on the sources, the pre-trained tower and ``key`` alone.

        An implementation may keep the result for further tasks of the method, so the caller must not change it.
        """
        return make()

    def file_digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each source's file, in the order of the names; empty if the sources have no files."""
        return ()


class SelectedSources(Sources):
    """Some of the sources in a chosen order. The order matters, because a basis has the sources' columns in this order.

    Args:
        sources: the sources to select from.
        positions: the positions of the selected sources in ``sources.names``.
    """

    def __init__(self, sources: Sources, positions: Sequence[int]) -> None:
        self._sources, self._positions = sources, tuple(positions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the selected sources."""
        return tuple(self._sources.names[position] for position in self._positions)

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        """Return each source's leading directions of one matrix, in the order of the selected names."""
        found = self._sources.directions(matrix, top_k)
        return [found[position] for position in self._positions]

    def mean_task_vector(self, matrix: str) -> Tensor:
        """Return the mean task vector of one weight matrix: the mean over the selected sources."""
        if len(self._positions) == len(self._sources.names):  # a mean does not depend on the order
            return self._sources.mean_task_vector(matrix)
        return super().mean_task_vector(matrix)

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        """Return one source's task vector."""
        return self._sources.task_vector(source)

    def file_digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each selected source's file."""
        digests = self._sources.file_digests()
        return tuple(digests[position] for position in self._positions) if digests else ()


@dataclass(frozen=True)
class BasisRecipe:
    """How a basis is computed from its sources.

    Attributes:
        top_k: directions per source and matrix; fewer if the matrix is too small for all sources.
        room: the number of sources for which the basis has columns. If there are fewer sources, ``polar`` fills the
            remaining columns with random directions, and ``whitening`` leaves these columns out.
        orthogonalisation: ``polar`` or ``whitening``; see :func:`bolt.spectral.bases.orthonormal_basis` and
            :func:`bolt.spectral.bases.whitened_basis`.
        whitening_epsilon: the epsilon of ``whitening``.
        basis: what the columns of the basis are. ``sources``: the sources' directions after ``orthogonalisation``.
            ``pretrained`` and ``pretrained_trailing``: the leading or trailing singular directions of the pre-trained
            weight. ``random``: random columns. Every choice gives a matrix's basis the same number of columns.
        seed: seed of the columns of a ``random`` basis.
    """

    top_k: int
    room: int
    orthogonalisation: Literal["polar", "whitening"] = "polar"
    whitening_epsilon: float = 1e-6
    basis: BasisOf = "sources"
    seed: int = 0


def build_basis(sources: Sources, recipe: BasisRecipe, matrix: str, weight: Tensor) -> PooledBasis:
    """Return the basis of one matrix by a recipe, and the sources' mean coefficients in it.

    Where possible, the basis comes from :meth:`Sources.pooled_basis` or :meth:`Sources.pretrained_basis`, whose results
    may be cached.

    Args:
        weight: the pre-trained matrix, (m, n).
    """
    m, n = weight.shape
    found = _basis_of_sources(sources, recipe, matrix, (m, n))
    if recipe.basis == "sources":
        return found
    width = min(found.basis.rank, m, n)
    if recipe.basis == "random":
        basis = random_basis((m, n), width, torch_generator("random basis", matrix, recipe.seed))
    else:
        trailing = recipe.basis == "pretrained_trailing"
        basis = sources.pretrained_basis(matrix, weight.detach().cpu(), width, trailing)
    return PooledBasis(basis, diagonal_coefficients(basis, sources.mean_task_vector(matrix)))


def _basis_of_sources(sources: Sources, recipe: BasisRecipe, matrix: str, shape: tuple[int, int]) -> PooledBasis:
    count, limit = len(sources.names), min(shape)
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
            basis = whitened_basis(directions, shape, recipe.whitening_epsilon)
        else:
            basis = orthonormal_basis(directions, shape)
    if padding and not whitening:  # whitening would only add columns of zeros
        basis = padded_basis(basis, per_source * room, torch_generator("padding", matrix))
    return PooledBasis(basis, diagonal_coefficients(basis, sources.mean_task_vector(matrix)))
