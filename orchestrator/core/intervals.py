"""The interval of an accuracy that was measured on some images."""

from __future__ import annotations

import math

_Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """Return the 95 % interval in per cent of a share of ``images`` independent images (Wilson, 1927)."""
    centre = (share + _Z**2 / (2 * images)) / (1 + _Z**2 / images)
    half = _Z / (1 + _Z**2 / images) * math.sqrt(share * (1 - share) / images + _Z**2 / (4 * images**2))
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)
