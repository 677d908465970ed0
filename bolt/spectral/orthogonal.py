"""Makes the columns of a matrix orthonormal by polar factors or whitening, and completes a set of orthonormal columns.

A stack is a matrix of unit columns, which may be linearly dependent. All arithmetic is float64; results have the dtype
of the input.

Shape legend: m (or n) rows, r columns of a stack.
"""

import torch
from torch import Tensor

_DEPENDENT = 1e-5
"""A unit column is dependent on others if its part outside their span is shorter than this."""

_WELL_CONDITIONED = 1e-6
"""A Gram matrix is used only if its smallest eigenvalue is more than this share of its largest one. Float64 then gives
the smallest eigenvalue with a relative error of 1e-9."""


def polar_factor(stack: Tensor) -> Tensor:
    """Return the matrix with orthonormal columns nearest to a stack (m, r): P Q^T, where the stack is P S Q^T.

    Raises ``ValueError`` if the columns are linearly dependent, because the nearest matrix is then not unique.
    """
    wide = stack.double()
    if (nearest := _polar_by_gram(wide)) is None:
        p, s, qh = torch.linalg.svd(wide, full_matrices=False)
        if len(s) < stack.shape[1] or bool(s[-1] <= torch.finfo(torch.float64).eps * max(stack.shape) * s[0]):
            raise ValueError(f"a {tuple(stack.shape)} matrix with dependent columns has no unique polar factor")
        nearest = torch.mm(p, qh)
    return nearest.to(stack.dtype).contiguous()


def paired_polar_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Return the polar factors (m, kept) and (n, kept) of two stacks of paired columns, and the kept columns' indices.

    If the columns of either stack are dependent, a pair is kept only if its u and its v both lie outside the span of
    the pairs kept before it. So both factors always have orthonormal columns.
    """
    kept = list(range(u.shape[1]))
    u_factor, v_factor = _polar_by_gram(u.double()), _polar_by_gram(v.double())
    if u_factor is None or v_factor is None:
        kept = _independent(u.double(), v.double())
        u_factor, v_factor = polar_factor(u[:, kept].double()), polar_factor(v[:, kept].double())
    return u_factor.to(u.dtype).contiguous(), v_factor.to(v.dtype).contiguous(), kept


def whiten(stack: Tensor, epsilon: float) -> Tensor:
    """Return the whitened stack (m, r): X (X^T X + epsilon I)^(-1/2), for a stack X and a positive epsilon.

    With X = P S Q^T this is P S (S^2 + epsilon)^(-1/2) Q^T. The result is close to the polar factor if all singular
    values are far above the square root of epsilon. Smaller singular values shrink towards zero. So dependent columns
    need no special treatment, but the resulting columns are then shorter than 1.
    """
    wide = stack.double()
    values, vectors = torch.linalg.eigh(wide.mT @ wide)
    inverse_root = vectors * (values.clamp_min(0) + epsilon).rsqrt() @ vectors.mT
    return torch.mm(wide, inverse_root).to(stack.dtype).contiguous()


def complete_columns(columns: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Return orthonormal columns (m, width): the given orthonormal columns (m, r), followed by random ones.

    ``generator`` must be on the CPU, and ``width`` between r and m.
    """
    m, r = columns.shape
    if width == r:
        return columns
    given = columns.double()
    random = torch.randn(m, width - r, generator=generator, dtype=torch.float64).to(columns.device)
    for _ in range(2):  # a second pass removes the rounding error of the first (Kahan)
        random = random - given @ (given.mT @ random)
    added = torch.linalg.qr(random)[0]
    return torch.cat([columns, added.to(columns.dtype)], dim=1)


def _polar_by_gram(stack: Tensor) -> Tensor | None:
    """Return X (X^T X)^(-1/2) of a float64 stack X; ``None`` if X is too ill-conditioned for an accurate result."""
    if stack.shape[1] > stack.shape[0]:
        return None
    if stack.shape[1] == 0:
        return stack
    values, vectors = torch.linalg.eigh(torch.mm(stack.mT, stack))
    if values[0] <= _WELL_CONDITIONED * values[-1]:
        return None
    return torch.mm(stack, torch.mm(vectors * values.rsqrt(), vectors.mT))


def _independent(u: Tensor, v: Tensor) -> list[int]:
    """Return the indices of the columns whose u and v both lie outside the span of the columns kept so far.

    The parts outside the span are computed by Gram-Schmidt.
    """
    kept: list[int] = []
    spans = [stack.new_zeros(stack.shape[0], min(u.shape[0], v.shape[0])) for stack in (u, v)]
    for column in range(u.shape[1]):
        if len(kept) == spans[0].shape[1]:
            break
        remainders = []
        for stack, span in zip((u, v), spans, strict=True):
            remainder = stack[:, column]
            for _ in range(2):  # a second pass removes the rounding error of the first (Kahan)
                remainder = remainder - span @ (span.mT @ remainder)
            remainders.append(remainder)
        lengths = [float(remainder.norm()) for remainder in remainders]
        if min(lengths) > _DEPENDENT:
            for span, remainder, length in zip(spans, remainders, lengths, strict=True):
                span[:, len(kept)] = remainder / length
            kept.append(column)
    return kept
