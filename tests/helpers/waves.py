"""Deterministic matrices and a small network, on which the methods' official code was run for reference numbers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def wave(rows: int, columns: int, a: float, b: float, c: float, product: float = 0.5) -> Tensor:
    """Return a float64 matrix with sin(a i + b j + c + product i j) in row i and column j, both from zero.

    With ``product=0`` the matrix has rank 2: see :func:`plane_wave`.
    """
    i, j = torch.arange(rows, dtype=torch.float64)[:, None], torch.arange(columns, dtype=torch.float64)
    return torch.sin(a * i + b * j + c + product * i * j)


def plane_wave(rows: int, columns: int, a: float, b: float, c: float) -> Tensor:
    """Return a float64 matrix with sin(a i + b j + c) in row i and column j, both from zero."""
    return wave(rows, columns, a, b, c, product=0.0)


def unit(values: Tensor) -> Tensor:
    return F.normalize(values, dim=-1).float()


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(value: Tensor, expected: Sequence[float], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compare a vector with numbers of the official code."""
    torch.testing.assert_close(value.double(), numbers(*expected), rtol=rtol, atol=atol)


W1, C1 = 0.5 * wave(5, 4, 0.9, 1.4, 0.2), 0.1 * wave(1, 5, 1, 0.8, 0.3)[0]
W2, C2 = 0.6 * wave(6, 5, 1.2, 0.7, 0.4), 0.1 * wave(1, 6, 1, 0.5, 0.6)[0]
INPUT = wave(2, 4, 0.7, 1.3, 0.2)


def two_layers(change1: Tensor | float = 0.0, change2: Tensor | float = 0.0) -> Tensor:
    """Return W2 tanh(W1 x + c1) + c2 with changed weights for the two rows x of ``INPUT``: (2, 6)."""
    return F.linear(torch.tanh(F.linear(INPUT, W1 + change1, C1)), W2 + change2, C2)


def train_two_layers(
    parameters: Sequence[Tensor],
    output: Callable[[], Tensor],
    steps: int,
    rate: float,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> list[float]:
    """Train with AdamW on the cross-entropy of 5 times the outputs with classes 1 and 4; return each step's loss."""
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(5 * output(), torch.tensor([1, 4]))
        loss.backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses
