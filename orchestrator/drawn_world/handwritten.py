"""Real handwritten digits, from scikit-learn's own copy: the one part of this world that is not drawn."""

from __future__ import annotations

import numpy as np


def load() -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """White ink on black: pictures uint8 (1797, 8, 8, 3) and labels int64 (1797,)."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    ink = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # stored as 0 to 16
    return np.repeat(ink[..., None], 3, axis=-1), digits.target.astype(np.int64)
