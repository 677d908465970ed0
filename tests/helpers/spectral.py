"""The dense form of a spectral update, which the tests compare the factored forms with."""

import torch
from torch import Tensor

from bolt.spectral.bases import Basis


def merge(weight: Tensor, basis: Basis, s: Tensor) -> Tensor:
    """W + U diag(s) V^T, (m, n)."""
    return torch.addmm(weight, basis.u * s, basis.v.mT)
