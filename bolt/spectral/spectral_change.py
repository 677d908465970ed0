"""What adaptation did to an image tower, in its smallest form: nothing, some whole tensors, or coefficients in a basis.

Coefficients alone are a few kilobytes. Their basis follows from the source models and a recipe, so it can be left out
and made again; a probe of the change, kept beside the coefficients, tells whether it is the same one.

Shape legend: m, n a weight matrix's rows and columns, r coefficients, P numbers of a probe.
"""

from __future__ import annotations

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
"""Relative difference of two probes of one change: a basis made on another processor differs in its last digits."""


class BasisMismatch(ValueError):
    """Coefficients under a basis that they are not of."""


@dataclass(frozen=True)
class SpectralChange:
    """U diag(s) V^T on some weight matrices, by open_clip's names and in its orientation.

    Attributes:
        coefficients: s (r,) as it enters the weights.
        bases: U (m, r) and V (n, r).
        recipe, sources: what the bases were made by and of.
    """

    coefficients: Mapping[str, Tensor]
    bases: Mapping[str, Basis]
    recipe: BasisRecipe
    sources: tuple[str, ...]

    def apply_to(self, tower: ImageTower) -> ImageTower:
        """The tower with the change folded in. Raises ``bolt.spectral.spectral_linear.NonFiniteTensor``."""
        return merge_coefficients(attach_coefficients(tower, self.bases, self.coefficients)[0])

    def probes(self) -> dict[str, Tensor]:
        """A few numbers (P,) per matrix that any other change of it would give differently."""
        return {name: _probe(name, self.bases[name], s) for name, s in self.coefficients.items()}


def _probe(matrix: str, basis: Basis, s: Tensor) -> Tensor:
    """The first entries of U diag(s) V^T x for an x that is keyed by the matrix; blind to the columns' signs."""
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
    """The change whose basis is made again of the sources; ``state`` has the matrices by open_clip's names.

    Raises ``BasisMismatch`` where the sources are not those the coefficients were trained with.
    """
    bases = {name: build_basis(sources, recipe, name, state[name].shape).basis for name in coefficients}
    for name, s in coefficients.items():
        if bases[name].rank != len(s):
            raise BasisMismatch(
                f"{name} has {len(s)} coefficients, and the basis made of {', '.join(sources.names)} has "
                f"{bases[name].rank} columns; it takes the models the coefficients were trained with"
            )
        found, expected = _probe(name, bases[name], s), probes[name]
        if float((found - expected).norm()) > _CLOSE * max(float(expected.norm()), 1e-12):
            raise BasisMismatch(
                f"the basis made of {', '.join(sources.names)} is not the one the coefficients of {name} were trained "
                "in; it takes the same models in the same order"
            )
    return SpectralChange(coefficients, bases, recipe, sources.names)
