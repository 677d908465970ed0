"""Converts images of measured values, such as satellite images, to 8-bit pixels, whatever their bands and range.

Shape legend: H, W height and width, C bands.
"""

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bolt.clip.picture_files import BITS, MEANING, NO_DATA, PictureFile, both_bytes, file_content, tiff_tag

CHOOSE_BANDS = (
    "choose one, or red, green and blue: with --bands 4,3,2, with bands: [4, 3, 2] in the dataset's entry, or with "
    "Reading(bands=(4, 3, 2))"
)
STATE_RANGE = (
    "state the range: with --range LOW,HIGH, with range: [LOW, HIGH] in the dataset's entry, or with "
    "Reading(range=(LOW, HIGH))"
)


class Stored(NamedTuple):
    """The values in an image file.

    Attributes:
        values_HWC: the values, (H, W, C), of the chosen bands.
        no_data: the value that means "no data", or ``None``.
        zero_is_white: whether low values are light, as in many X-rays.
    """

    values_HWC: NDArray[np.generic]
    no_data: float | None = None
    zero_is_white: bool = False


def white_of(image: Image.Image | None, values_HWC: NDArray[np.generic]) -> float:
    """Return the value that is white in the number format of an image: 255, 4095, 65535 or 1."""
    if values_HWC.dtype == np.uint8:
        return 255
    if image and tiff_tag(image, BITS, 16) == 12:
        return 4095
    return 65535 if np.issubdtype(values_HWC.dtype, np.integer) else 1.0


def read_values(source: PictureFile | Image.Image, image: Image.Image | None, bands: Sequence[int] | None) -> Stored:
    """Return an image's stored values in the chosen bands.

    ``image``: the image as decoded by Pillow; ``None`` if Pillow cannot decode it. Raises ``ValueError`` if a band does
    not exist, or if ``bands`` is ``None`` and the image is neither grey nor RGB.
    """
    last, found = max(bands or (1,)), Stored(np.empty(0))
    if not isinstance(source, Image.Image) and (
        image is None or (image.format == "TIFF" and last > len(image.getbands()))
    ):
        found = _tiff_values(source)
        values_HWC = found.values_HWC
    else:
        assert image is not None
        found = found._replace(zero_is_white=len(image.getbands()) == 1 and tiff_tag(image, MEANING, 1) == 0)
        with suppress(Exception):
            found = found._replace(no_data=float(image.tag_v2[NO_DATA]))  # type: ignore[attr-defined]
        if isinstance(source, Image.Image) or image.mode[0] not in "IFRL":
            values = np.asarray(image if image.mode[0] in "IFRL" or bands else image.convert("RGB"))
        else:
            values = both_bytes(source, image)
        if found.zero_is_white and values.dtype == np.uint8:
            values = 255 - values  # Pillow inverts 8-bit values, and no others
        values_HWC = np.atleast_3d(values)
        if not bands and values_HWC.shape[2] in (2, 4):
            values_HWC = values_HWC[..., :-1]
    count = values_HWC.shape[2]
    if last > count:
        raise ValueError(f"there is no band {last}: the image has {count}")
    if not bands and count not in (1, 3):
        raise ValueError(f"it has {count} bands; {CHOOSE_BANDS}")
    return found._replace(values_HWC=values_HWC[..., [band - 1 for band in bands]] if bands else values_HWC)


def _tiff_values(source: PictureFile) -> Stored:
    """Return the values of all bands of a TIFF. The bands may be stored as samples, planes or pages."""
    try:
        import tifffile  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        what = "Pillow does not read this TIFF (its bands, planes or numbers)"
        raise ValueError(f"{what}; install tifffile: python -m pip install tifffile imagecodecs") from None
    with tifffile.TiffFile(io.BytesIO(file_content(source))) as file:
        values, axes = np.asarray(file.series[0].asarray()), file.series[0].axes
        no_data, meaning = (file.pages.first.tags.valueof(tag) for tag in (NO_DATA, MEANING))
    if values.ndim not in (2, 3) or not {"Y", "X"} <= set(axes) or np.iscomplexobj(values):
        raise ValueError(f"the file is no picture: its values are {values.dtype}, with the axes {axes}")
    values_HWC = np.atleast_3d(np.moveaxis(values, [axes.index("Y"), axes.index("X")], [0, 1]))
    found = Stored(values_HWC, zero_is_white=meaning == 0)
    with suppress(TypeError, ValueError):
        return found._replace(no_data=float(no_data))
    return found


def to_8_bit(
    stored: Stored, stated: tuple[float, float] | None, white: float
) -> tuple[Image.Image, tuple[float, float], tuple[str, ...]]:
    """Scale values to a grey or RGB image of 8 bits, from the range ``stated`` or from 0 to ``white``.

    If zero is white, the range is reversed.

    Return the image, the 0.5 % and the 99.5 % quantile of the values, and remarks. A value that is missing or not
    finite becomes black.

    Raises ``ValueError`` if no range is stated and values lie outside of 0 to ``white``.
    """
    values_HWC, no_data, zero_is_white = stored
    values = values_HWC.astype(np.float64)
    known = np.isfinite(values) & (True if no_data is None else values != no_data)
    low, high = stated or (0.0, white)
    seen = values[known] if known.any() else np.zeros(1)
    if stated is None and not (0 <= seen.min() <= seen.max() <= white and np.isfinite(values).all()):
        others = "" if np.isfinite(values).all() else ", and some are not finite"
        span = f"{values_HWC.dtype} pixels range from {seen.min():g} to {seen.max():g}{others}"
        raise ValueError(f"{span}; without a stated range, values from 0 to {white:g} are allowed; {STATE_RANGE}")
    scaled = np.clip((np.where(known, values, low) - low) * (255 / (high - low)), 0, 255)
    pixels = np.where(known, np.rint(255 - scaled if zero_is_white else scaled), 0).astype(np.uint8)
    outer = np.percentile(seen, (0.5, 99.5))
    plain = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    remarks = ["pixels without data are black"] * (not known.all())
    if ((seen < low) | (seen > high)).mean() > 0.5:
        remarks.append(f"most values are outside of the range {low:g} to {high:g}, so black or white")
    return plain, (float(outer[0]), float(outer[1])), tuple(remarks)
