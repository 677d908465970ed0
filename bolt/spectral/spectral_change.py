"""The change of an image tower as coefficients in bases, and rebuilding the bases from the source models.

The coefficients need only a few kilobytes. The bases can be recomputed from the source models by a
:class:`bolt.spectral.sources.BasisRecipe`, so the bases need not be saved. A checksum, the probe, is saved with the
coefficients. It shows whether a recomputed basis is the basis in which the coefficients were trained.

Shape legend: m, n a weight matrix's rows and columns, r coefficients, P numbers of a probe.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from bolt.spectral.bases import Basis
from bolt.spectral.sources import BasisRecipe, Sources, build_basis
from bolt.spectral.spectral_linear import attach_coefficients, merge_coefficients

_PROBED = 16
_CLOSE = 1e-3
"""Tolerated relative difference of two probes. A basis computed on a different processor differs in its last digits."""


class BasisMismatch(ValueError):
    """The basis rebuilt from the given sources is not the one that the coefficients belong to."""


@dataclass(frozen=True)
class SpectralChange:
    """The update U diag(s) V^T of some weight matrices, with open_clip's names and orientation.

    Attributes:
        coefficients: s (r,) of each matrix, as the update uses it: already clamped if the method clamps it.
        bases: U (m, r) and V (n, r) of each matrix.
        recipe: how the bases were computed.
        sources: names of the source models that the bases were computed from.
        digests: SHA-256 of each source's file, in the order of ``sources``; empty if unknown.
    """

    coefficients: Mapping[str, Tensor]
    bases: Mapping[str, Basis]
    recipe: BasisRecipe
    sources: tuple[str, ...]
    digests: tuple[str, ...] = ()

    def apply_to(self, tower: ImageTower) -> ImageTower:
        """Return a copy of a tower with the update merged into its weights.

        Raises ``NonFiniteTensor`` if a coefficient is NaN or infinite.
        """
        return merge_coefficients(attach_coefficients(tower, self.bases, self.coefficients)[0])

    def probes(self) -> dict[str, Tensor]:
        """Return a checksum of each matrix's update: P numbers that depend on the coefficients and on their basis."""
        return {name: _probe(name, self.bases[name], s) for name, s in self.coefficients.items()}


def _probe(matrix: str, basis: Basis, s: Tensor) -> Tensor:
    """Return the first P entries of U diag(s) V^T x, for a random x that the matrix's name seeds.

    The probe stays the same if a column of U and the same column of V both change their sign.
    """
    u, v = basis.u.double().cpu(), basis.v.double().cpu()
    x_n = torch.randn(len(v), generator=torch_generator("probe", matrix), dtype=torch.float64)
    return (u @ (s.double().cpu() * (v.mT @ x_n)))[:_PROBED].float()


def rebuild_change(
    coefficients: Mapping[str, Tensor],
    probes: Mapping[str, Tensor],
    recipe: BasisRecipe,
    sources: Sources,
    state: Mapping[str, Tensor],
) -> SpectralChange:
    """Return the change that saved coefficients describe, with its bases recomputed from the source models.

    Args:
        coefficients: s (r,) of each matrix by open_clip's name.
        probes: the saved result of :meth:`SpectralChange.probes`.
        recipe, sources: the recipe and the sources that the bases were computed with.
        state: the frozen tower's tensors by open_clip's names.

    Raises:
        BasisMismatch: if these are not the sources that the coefficients were trained with.
    """
    bases = {name: build_basis(sources, recipe, name, state[name]).basis for name in coefficients}
    for name, s in coefficients.items():
        if bases[name].rank != len(s):
            raise BasisMismatch(
                f"{name} has {len(s)} coefficients, but the basis built from {', '.join(sources.names)} has "
                f"{bases[name].rank} columns; pass the source models that the coefficients were trained with"
            )
        found, expected = _probe(name, bases[name], s), probes[name]
        if float((found - expected).norm()) > _CLOSE * max(float(expected.norm()), 1e-12):
            raise BasisMismatch(
                f"the basis built from {', '.join(sources.names)} is not the one that the coefficients of {name} were "
                "trained in; pass the same source models"
            )
    return SpectralChange(coefficients, bases, recipe, sources.names, sources.file_digests())
