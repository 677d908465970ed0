"""Reads an image file of any kind as an upright picture in RGB or grey.

For RGB and grey images the result is bit-identical to open_clip's. Other images are converted before they are resized:

=====================  ===============================================================================================
palette, 1-bit         to RGB or grey, because Pillow resizes unconverted palette indices by nearest neighbour
CMYK, YCbCr, Lab, HSV  by Pillow's conversion, as torchvision's folder loader does
transparent            composited on white. The colours of transparent pixels are arbitrary. open_clip shows them, or
                       black, depending on whether the image had to be resized. An opaque alpha channel is dropped
a fourth band          of a TIFF, JPEG 2000, BMP or TGA is alpha, or measured values such as near infrared. A file may
                       tag such values as alpha. So the band counts as alpha only if at least half of the pixels that
                       are not fully transparent are fully opaque
16-bit grey            v / 257, rounded. Pillow would clip at 255, so most images would be white. 12 bits: v / 16.06
32-bit integers        like 16-bit grey if all values are in 0 to 65535, otherwise an error: their range is unknown
floating point         255 v, rounded, if all values are in 0 to 1, otherwise an error
with a stated range    255 (v - low) / (high - low), rounded and clipped. NaN and the file's "no data" are black
zero is white          reversed. A TIFF can state this about its values, as many X-rays do
several frames         the first frame
EXIF orientation       applied, except to a benchmark's images, whose published numbers were measured without it.
                       (Pillow itself always applies the orientation of a TIFF)
damaged metadata       ignored. Truncated pixels are an error, and so are an image that exceeds Pillow's limit for
                       decompression bombs, and a line: one side over 400 times as long as the other. A JPEG
                       whose end is missing and a PNG with a wrong checksum are errors too, except in a benchmark:
                       Pillow would show the missing part as grey or as another colour. A file of
                       another format that ends in zeros only gets a remark: the zeros may be a plain area
=====================  ===============================================================================================

If tifffile is installed, it reads the TIFFs whose bands, planes or number formats Pillow does not support.
"""

import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile

from bolt.clip.measured_values import STATE_RANGE, read_values, to_8_bit, white_of
from bolt.clip.picture_files import (
    SAMPLES,
    PictureFile,
    ends_in_zeros,
    has_opacity,
    load_picture,
    refuse_damaged_jpeg,
    refuse_damaged_png,
    tiff_tag,
)
from bolt.util.ranges import Checked, Range

UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""The exceptions that Pillow raises for an image that is damaged, truncated or too large."""

ImageSource = Image.Image | PictureFile
"""An open image, the path of an image file, or an open binary file."""

_TURNS: dict[Any, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""EXIF orientation -> the operation that turns the picture upright."""

_CHECKS = {"JPEG": refuse_damaged_jpeg, "MPO": refuse_damaged_jpeg, "PNG": refuse_damaged_png}
"""Pillow's name of a format -> the function that refuses damage which Pillow does not notice."""

_NARROWEST = 400
"""Largest ratio of an image's sides. A narrower image would take gigabytes when it is resized, or have no pixels."""

_INFO = "read as"

_BANDS = Range(
    "three numbers (red, green, blue) or one (grey), from 1, such as 4,3,2",
    lambda bands: len(bands) in (1, 3) and all(isinstance(band, int) and band > 0 for band in bands),
)
_ENDS = Range(
    "two values, such as 0,3000: the value that becomes black, and the larger value that becomes white",
    lambda ends: len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf,
)


@dataclass(frozen=True)
class Reading(Checked):
    """How the pixels of a dataset's images are read.

    Attributes:
        upright: whether photographs are turned by their EXIF orientation.
        bands: numbers, from 1, of the red, green and blue bands, or of one grey band; ``None`` for an RGB or grey file.
        range: the value that becomes black, and the value that becomes white. With ``None``, they are the ends of the
            number format's range.

    Raises:
        ValueError: if ``bands`` is not one or three whole numbers from 1, or ``range`` not two ascending values.
    """

    upright: bool = True
    bands: Annotated[tuple[int, ...], _BANDS] | None = None
    range: Annotated[tuple[float, float], _ENDS] | None = None


UPRIGHT = Reading()


class ReadAs(NamedTuple):
    """How an image was read.

    Attributes:
        turned: whether the EXIF orientation asks for a turn. A reading that is not ``upright`` ignores it.
        remarks: notes on the parts of the file that are not used.
        low, high: the least and the greatest value of the pixels, if ``white`` is 255. With any other ``white``, the
            0.5 % and the 99.5 % quantile of the stored values.
        white: the value that is white in the file's number format.
    """

    turned: bool = False
    remarks: tuple[str, ...] = ()
    low: float = 0
    high: float = 255
    white: float = 255


def open_image(source: ImageSource, reading: Reading = UPRIGHT) -> Image.Image:
    """Open an image: upright, in mode ``RGB`` or ``L``. Raises one of the exceptions in ``UNREADABLE``."""
    try:
        return _open(source, reading)
    except UNREADABLE:
        raise
    except Exception as error:  # damaged files raise many types of exceptions
        raise OSError(f"it cannot be decoded: {type(error).__name__} {error}") from error


def open_named(source: ImageSource, reading: Reading = UPRIGHT) -> Image.Image:
    """Open an image with :func:`open_image`. The ``OSError`` for a damaged file names the file."""
    try:
        return open_image(source, reading)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise OSError(f"{source} cannot be decoded: {error}") from error


def to_rgb_or_grey(image: Image.Image) -> Image.Image:
    """Convert an open image to mode ``RGB`` or ``L`` by the rules of this module, without turning it."""
    if image.mode in ("RGB", "L") and not image.has_transparency_data:
        return image
    return open_image(image, Reading(upright=False))


def read_as(image: Image.Image) -> ReadAs:
    """Return how ``image``, a result of :func:`open_image`, was read."""
    found: ReadAs = image.info.get(_INFO, ReadAs())
    extrema = np.ravel(image.getextrema())
    return found if found.white != ReadAs().white else found._replace(low=min(extrema), high=max(extrema))


def reading_notes(found: Iterable[ReadAs], reading: Reading = UPRIGHT) -> list[str]:
    """Return notes on the unused parts of a dataset's images, with counts, and a note if most images are dark."""
    images = list(found)
    counts = Counter(remark for one in images for remark in one.remarks)
    notes = [f"{remark}: {count} of {len(images)} images" for remark, count in counts.items()]
    if images and reading.range is None and float(np.median([one.high / one.white for one in images])) < 0.5:
        low, high = (float(np.median(ends)) for ends in zip(*((one.low, one.high) for one in images), strict=True))
        notes.append(
            f"the images are dark: most values lie in {low:g} to {high:g}, and {images[0].white:g} counts as white; if "
            f"another value is white, {STATE_RANGE}"
        )
    return notes


def _open(source: ImageSource, reading: Reading) -> Image.Image:
    image: Image.Image | None
    remarks: tuple[str, ...]
    if isinstance(source, ImageFile.ImageFile) and source.format == "TIFF" and source.tile and not source.tell():
        source.load()  # which closes the file, but may give other pixels than the file's
        source = Path(os.fsdecode(source.filename)) if os.path.isfile(source.filename) else source
    if isinstance(source, Image.Image):
        source.load()  # Pillow turns a TIFF upright here
        if _INFO in source.info:  # this function has made the image, so its values are 0 to 255 already
            reading = replace(reading, bands=None, range=None)
        image, remarks = source, ()
    else:
        image, remarks = load_picture(source)
        if reading.upright and image and (check := _CHECKS.get(image.format or "")):
            check(source)
        elif reading.upright and image and ends_in_zeros(source):
            remarks = (*remarks, "the file ends in zeros: a plain area, or its end is missing after an incomplete copy")
    turn = None
    with suppress(Exception):  # damaged metadata
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation)) if image else None
    found = ReadAs(turn is not None, remarks)
    if image is None or reading.bands or reading.range or image.mode[0] in "IF":
        stored = read_values(source, image, reading.bands)
        white = white_of(image, stored.values_HWC)
        plain, (low, high), more = to_8_bit(stored, reading.range, white)
        found = ReadAs(turn is not None, (*remarks, *more), low, high, white)
        if image and image.mode[0] == "I" and isinstance(clear := image.info.get("transparency"), int):
            plain.paste(255, mask=Image.fromarray(stored.values_HWC[..., 0] == clear))
        elif image and not reading.bands and has_opacity(image):
            plain = _on_white(plain, image.convert("RGBA").getchannel("A"))
    else:
        plain = _to_plain(image)
        samples = tiff_tag(image, SAMPLES, 1) - len(image.getbands())
        if samples > 0 or (plain.mode == "RGB" and image.mode == "RGBA" and not has_opacity(image)):
            found = found._replace(remarks=(*remarks, "bands beyond red, green and blue are not used"))
    if max(plain.size) > _NARROWEST * min(plain.size):
        raise ValueError(f"it has {plain.width} x {plain.height} pixels: a line, not a picture")
    if turn is not None and reading.upright:
        plain = plain.transpose(turn)
    if found != ReadAs() or plain is not source:
        plain = plain.copy() if plain is source else plain
        plain.info = {_INFO: found}
    return plain


def _to_plain(image: Image.Image) -> Image.Image:
    if image.has_transparency_data and has_opacity(image):
        if image.mode == "La":  # Pillow cannot convert it to RGBA directly
            image = image.convert("LA")
        image = image.convert("RGBA")
        return _on_white(image, image.getchannel("A"))
    if image.mode in ("RGB", "L"):
        return image
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")


def _on_white(image: Image.Image, alpha: Image.Image) -> Image.Image:
    if alpha.getextrema() == (255, 255):
        return image.convert("RGB")
    image = image.convert("RGBA")
    image.putalpha(alpha)
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
