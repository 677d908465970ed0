"""Find copies of pictures: equal pixels, and pictures that were compressed, scaled, brightened or slightly cropped.

Small versions of the pictures are compared. Several crops of one picture are compared with the whole other picture, so
that a copy with cut edges is found too. Two pictures are copies if they resemble each other far more than one of them
resembles its fifth nearest neighbour. No fixed limit suits every dataset: different photographs of products in front of
white are much more alike than different drawn letters.

The limits were set on photographs, handwriting and drawn pictures, in sets of 60 to 2,700 images.

Shape legend: N images, W crops, K neighbours, B images of a block.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.util.grouping import grouped

Floats = NDArray[np.float32]
Crop = tuple[float, float, float, float]

SIDE = 32
"""Side in pixels of the small versions of pictures that are compared."""

RATIO, RATIO_OF_FEW, FEW = 0.1, 0.03, 100
"""``RATIO``: largest distance between a picture and its copy, divided by the distance between the picture and its fifth
nearest picture. A distance is 1 minus the correlation. ``RATIO_OF_FEW`` takes the place of ``RATIO`` in sets of fewer
than ``FEW`` pictures, where the fifth nearest picture is often far away."""

TINT = 0.02
"""Largest difference in tint between two copies. A tint is the mean of red, green or blue, divided by the sum of the
three means."""

ALIKE = 0.997
"""Two pictures with the same tint and at least this correlation are copies, even if the fifth nearest picture is near.

A picture with five or more copies needs this limit, because its fifth nearest picture is itself a copy."""

MOST = 100_000
"""Largest number of images in which near copies are searched for. The time grows with the square of the number."""

NEIGHBOURS = 20
BACKGROUND = 4
"""Position of the fifth nearest picture among the neighbours. The nearest one has position 0."""

_FLAT = 2.0
"""Standard deviation, in grey levels, below which a picture is too plain to be recognised."""

_BLOCK = 1000
_CROPS: list[Crop] = [
    *((top, 1 - bottom, left, 1 - right) for top, bottom, left, right in product((0.0, 0.03), repeat=4)),
    *((f, 1 - f, f, 1 - f) for f in (0.02, 0.04, 0.06)),
    *((*rows, *columns) for f in (0.04, 0.08) for rows in ((0, 1 - f), (f, 1)) for columns in ((0, 1 - f), (f, 1))),
]
"""Top, bottom, left and right of each crop, as shares of the sides. The first crop is the whole picture."""


def small_version(image: Image.Image) -> NDArray[np.uint8]:
    """Return the picture in ``SIDE`` x ``SIDE`` pixels, uint8 (3, SIDE, SIDE)."""
    plain = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.HAMMING, reducing_gap=2.0)
    return np.asarray(plain).transpose(2, 0, 1)


def facing(small: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Mirror and turn a small version so that all mirrored and turned copies of a picture give the same result."""
    half = SIDE // 2
    for axis in (1, 2):
        halves = np.split(small.mean(axis=0), 2, axis=axis - 1)
        small = small if halves[0].mean() >= halves[1].mean() else np.flip(small, axis)
    grey = small.mean(axis=0)
    return small if grey[:half].mean() >= grey[:, :half].mean() else small.transpose(0, 2, 1)


def find_copies(
    digests: Sequence[bytes], small: Sequence[NDArray[np.uint8]], *, cropped: bool = True
) -> list[list[int]]:
    """Return the groups of images that are copies of one picture, as ascending positions.

    Args:
        digests: checksums of the pixels.
        small: the :func:`small_version` of each image.
        cropped: whether copies with cut edges are searched for.
    """
    if not digests:
        return []
    first: dict[bytes, int] = {}
    pairs = [(first.setdefault(digest, n), n) for n, digest in enumerate(digests)]
    crops = _CROPS if cropped else _CROPS[:1]
    # One picture of each group of exact copies. Otherwise a picture's neighbours could all be its exact copies.
    distinct = np.array(sorted(first.values()))
    if len(distinct) > 2 and len(digests) <= MOST:
        near = _near_pairs(np.stack([small[n] for n in distinct]), crops)
        pairs += [(int(distinct[i]), int(distinct[j])) for i, j in near]
    return linked(pairs, len(digests))


def linked(pairs: Sequence[tuple[int, int]], count: int) -> list[list[int]]:
    """Return the groups of two or more positions, of 0 to ``count`` - 1, that the pairs connect, each ascending."""
    from scipy.sparse import coo_array  # takes half a second, and most commands do not search for copies
    from scipy.sparse.csgraph import connected_components

    ones, others = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    links = coo_array((np.ones(len(pairs)), (ones, others)), shape=(count, count))
    members = grouped(range(count), connected_components(links, directed=False)[1].__getitem__)
    return sorted(each for each in members.values() if len(each) > 1)


def _near_pairs(small: NDArray[np.uint8], crops: Sequence[Crop]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of images that are near copies; ``small`` is (N, 3, SIDE, SIDE)."""
    nearest_NK = _nearest(small)
    whole_ND = _crop_vectors(small, _CROPS[0], 16)
    alike_NK = np.full_like(nearest_NK, -1, dtype=np.float32)
    for crop in crops:
        cropped_ND = _crop_vectors(small, crop, 16)
        for start in range(0, len(small), _BLOCK):
            rows = slice(start, start + _BLOCK)
            near_BK = nearest_NK[rows]
            for one, other in ((cropped_ND, whole_ND), (whole_ND, cropped_ND)):
                found_BK = np.einsum("bd,bkd->bk", one[rows], other[near_BK])
                alike_NK[rows] = np.maximum(alike_NK[rows], found_BK)
    background = -1 - min(BACKGROUND, alike_NK.shape[1] - 1)
    background_N = np.maximum(np.sort(alike_NK, axis=1)[:, background], 0)
    limit_N = np.minimum(1 - (RATIO if len(small) >= FEW else RATIO_OF_FEW) * (1 - background_N), ALIKE)
    colour_N3 = small.mean(axis=(2, 3)) + 1
    tint_N3 = colour_N3 / colour_N3.sum(axis=1, keepdims=True)
    for i, k in np.argwhere(alike_NK >= limit_N[:, None]):
        j = nearest_NK[i, k]
        if np.abs(tint_N3[i] - tint_N3[j]).max() < TINT:
            yield int(i), int(j)


def _nearest(small: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions of each image's K nearest images, (N, K), unsorted. Blurred grey images are compared."""
    count = min(NEIGHBOURS, len(small) - 1)
    blurred_ND = _crop_vectors(small.mean(axis=1, keepdims=True), _CROPS[0], 8)
    found = np.empty((len(small), count), dtype=np.int64)
    for start in range(0, len(small), _BLOCK):
        alike_BN = blurred_ND[start : start + _BLOCK] @ blurred_ND.T
        alike_BN[np.arange(len(alike_BN)), start + np.arange(len(alike_BN))] = -2  # a picture is no neighbour of itself
        found[start : start + _BLOCK] = np.argpartition(-alike_BN, count - 1, axis=1)[:, :count]
    return found


def _crop_vectors(small: NDArray[np.generic], crop: Crop, side: int) -> Floats:
    """Return the same crop of each image in ``side`` x ``side`` pixels, as a vector of mean zero and length 1.

    The product of two such vectors is a correlation, on which brightness and contrast have no influence. A picture of a
    single colour becomes a vector of zeros.
    """
    top, bottom, left, right = crop
    rows, columns = _averages(top, bottom, side), _averages(left, right, side)
    seen = np.einsum("ai,ncij,bj->ncab", rows, small.astype(np.float32), columns, optimize=True)
    seen = (seen - seen.mean(axis=(2, 3), keepdims=True)).reshape(len(seen), -1)
    length_N = np.linalg.norm(seen, axis=1, keepdims=True)
    plain_N = length_N < _FLAT * seen.shape[1] ** 0.5
    return np.where(plain_N, 0, seen / np.maximum(length_N, 1e-6)).astype(np.float32)


def _averages(start: float, stop: float, count: int) -> Floats:
    """Return weights (count, SIDE) that resize a part of a row to ``count`` pixels. The row has ``SIDE`` pixels.

    Each new pixel is the mean of the pixels that it covers. The part begins at ``start`` and ends at ``stop``, where 0
    is the beginning of the row and 1 is its end.
    """
    edges = np.linspace(start, stop, count + 1) * SIDE
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(SIDE)
    share = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return np.asarray(share / share.sum(axis=1, keepdims=True), dtype=np.float32)
