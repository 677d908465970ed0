"""Composing weights of task vectors as a plain sum: what the composition of aTLAS is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def compose_by_autograd(
    base: Mapping[str, Tensor], stacks: Mapping[str, Tensor], coefficients_NP: Tensor
) -> dict[str, Tensor]:
    """Return the weights of a ``Composition``, composed by a sum that autograd differentiates.

    The sums are in the base's type. Stacks of another type are converted, and autograd keeps the converted copies for
    its backward.
    """
    composed = {}
    for position, (name, stack) in enumerate(stacks.items()):
        rows = zip(coefficients_NP[:, position], stack, strict=True)
        terms = [coefficient * vector.to(base[name].dtype).view(base[name].shape) for coefficient, vector in rows]
        composed[name] = base[name] + sum(terms)
    return composed
