"""Decodes picture files with Pillow, and works around Pillow's limits.

Damaged metadata does not make a picture unreadable, numbers of 16 bits keep their values, and a fourth band that is not
opacity keeps its values too.
"""

import io
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

PictureFile = str | Path | BinaryIO
"""The path of a file, or an open binary file."""

BITS, MEANING, SAMPLES, NO_DATA = 258, 262, 277, 42113
"""Numbers of four TIFF tags: bits per sample, the meaning of the values (0: zero is white), samples per pixel, and the
value that stands for missing data."""

_PLANAR, _PALETTE, _EXTRA_SAMPLES, _NUMBERS = 284, 320, 338, 339
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_NATIVE = {"I;16BS": "I;16S", "I;32BS": "I;32S", "F;32BF": "F;32F"}
"""Raw modes of compressed numbers, of which libtiff has swapped the bytes already, and Pillow would swap them again."""

_WITH_OPACITY = frozenset({None, "AVIF", "GIF", "HEIF", "ICNS", "ICO", "PNG", "WEBP"})
"""Formats in which an additional channel is always opacity; ``None`` is the format of an image made in memory."""

_OTHER_KINDS = (
    (b"^$", "it is empty"),
    (b"^\\0+$", "it begins with zeros, as after a failed copy"),
    (b"^.{4}ftyp(hei|hev|mif1|msf1)", "it is HEIC, which pillow-heif reads"),
    (b"^(\xff\x0a|\0{3}\x0cJXL )", "it is JPEG XL, which pillow-jxl-plugin reads"),
    (b"^.{4}ftypavi[fs]", "it is AVIF, and damaged or of a kind that Pillow does not read"),
    (b"^.{4}ftyp", "it is a video"),
    (b'^\\s*[{]\\s*"', "it is JSON, as servers send it in place of a picture"),
    (b"^version https://git-lfs", "it is a pointer of Git LFS; fetch the images with git lfs pull"),
    (b"(?i)^\\s*<(!doctype html|html|head|\\?xml|svg)", "it is a web page or a drawing in XML"),
    (b"^%PDF", "it is a PDF"),
    (b"^(PK\x03\x04|\x1f\x8b|Rar!|7z)", "it is an archive"),
    (b"^.{128}DICM", "it is DICOM"),
    (b"^[\t\n\r -~\x80-\xff]*$", "it is text"),
    (b"^\xff\xd8\xff", "it is a JPEG of a kind that Pillow does not read"),
)
"""Pattern of a file's first 200 bytes -> what the file is. For files that Pillow does not recognise as pictures."""


@cache
def register_formats() -> None:
    """Register the installed packages that let Pillow read HEIC and JPEG XL, and silence Pillow's warnings.

    The warnings are about damaged metadata, which :func:`load_picture` reports itself, and about large photographs,
    which they call an attack.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with suppress(ImportError):
        import pillow_heif  # type: ignore[import-not-found,unused-ignore]

        pillow_heif.register_heif_opener()
    with suppress(ImportError):
        import pillow_jxl  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    Image.init()


def load_picture(source: PictureFile) -> tuple[Image.Image | None, tuple[str, ...]]:
    """Decode a file with Pillow. Return the image, and remarks on what was left out.

    The image is ``None`` for a TIFF that Pillow cannot read, or would read wrongly.
    """
    register_formats()
    try:
        return _decode(source)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Image.DecompressionBombError as error:
        raise Image.DecompressionBombError(f"{str(error).partition(',')[0]}; make the image smaller") from None
    except Exception as error:  # damaged files raise many types of exceptions
        content = file_content(source)
        if content.startswith(_TIFF) and isinstance(error, UnidentifiedImageError):
            return None, ()
        for bare in _without_metadata(content):
            with suppress(Exception):
                image, remarks = _decode(io.BytesIO(bare))
                return image, (*remarks, "damaged metadata is ignored")
        if isinstance(error, UnidentifiedImageError):  # Pillow's message has only the path
            found = (what for pattern, what in _OTHER_KINDS if re.search(pattern, content[:200], re.DOTALL))
            raise UnidentifiedImageError(next(found, "Pillow cannot read this kind of file")) from None
        raise


def _decode(source: PictureFile) -> tuple[Image.Image | None, tuple[str, ...]]:
    image = _load_as(source)
    if image.format == "TIFF":
        signed = tiff_tag(image, _NUMBERS, 1) == 2 and tiff_tag(image, BITS, 1) == 8
        if signed or (tiff_tag(image, _PLANAR, 1) == 2 and tiff_tag(image, BITS, 1) > 8):
            return None, ()  # Pillow would return wrong pixels
        if tiff_tag(image, _EXTRA_SAMPLES, 0) == 1 and image.mode == "RGBA":
            # Pillow has divided the colours by the fourth band, which is right only if the band is opacity.
            as_stored = _load_as(source, lambda mode: mode.replace("RGBa", "RGBA"))
            image = image if has_opacity(as_stored) else as_stored
        colours = image.tag_v2.get(_PALETTE, ()) if image.mode == "P" else ()  # type: ignore[attr-defined]
        if colours and max(colours) < 256:  # values of 8 bits, as some programs write them, and not of 16
            image.putpalette(bytes(colours), "RGB;L")
    animated = image.info.pop("animated") and image.format not in ("MPO", "PSD")  # layers of a PSD are no frames
    return image, ("only the first frame is used",) if animated else ()


def _load_as(source: PictureFile, mode_of: Callable[[str], str] = str) -> Image.Image:
    """Decode a file with Pillow.

    A tile is a piece of the file that Pillow decodes at once. Its raw mode says how the file stores the pixels, such as
    ``RGB;16B``. ``mode_of`` maps the raw mode that Pillow chooses to the raw mode to use.
    """
    if not isinstance(source, str | Path):
        source.seek(0)
    with Image.open(source) as image:
        if image.format == "TIFF":
            image.filename = ""  # Pillow would map the file, and so scramble a picture that lies on its side
        tiles = [(tile, *_raw_mode(tile.args)) for tile in image.tile]
        modes = [mode_of(_NATIVE.get(mode, mode) if tile.codec_name == "libtiff" else mode) for tile, mode, _ in tiles]
        if modes != [mode for _, mode, _ in tiles]:
            image.tile = [
                tile._replace(args=of_mode(mode)) for (tile, _, of_mode), mode in zip(tiles, modes, strict=True)
            ]
        animated, first = False, image.tell()
        with suppress(Exception):  # a damaged second frame
            animated = bool(getattr(image, "is_animated", False))
        if image.tell() != first:  # Pillow cannot seek in a PSD without layers
            image.seek(first)
        image.load()
        for _, mode, _ in tiles if isinstance(image.info.get("transparency"), int) else ():
            image.info["transparency"] *= {"L;2": 85, "L;4": 17}.get(mode, 1)  # Pillow scales the pixels only
        if any(";16" in mode for _, mode, _ in tiles) and image.mode in ("RGB", "RGBA"):
            image.info["16 bits"] = True
            if isinstance(clear := image.info.get("transparency"), tuple):
                image.info["transparency"] = tuple(value >> 8 for value in clear)
        image.info["animated"] = animated
        return image


def _raw_mode(arguments: Any) -> tuple[str, Callable[[str], Any]]:
    """Return a tile's raw mode, and a function that takes another raw mode and returns the tile's new arguments.

    ``arguments`` are those of the tile's decoder. They are the raw mode alone, or a tuple that begins with it. Other
    arguments have no raw mode: the first result is then ``""``, and the function returns the arguments unchanged.
    """
    if isinstance(arguments, str):
        return arguments, str
    if isinstance(arguments, tuple) and arguments and isinstance(arguments[0], str):
        return arguments[0], lambda mode: (mode, *arguments[1:])
    return "", lambda mode: arguments


def both_bytes(source: PictureFile, image: Image.Image) -> NDArray[np.generic]:
    """Return the pixels of an image with all of their bits.

    Pillow reduces colours of 16 bits to their high byte. For such an image, the file is decoded again for the low byte.
    """
    pixels = np.asarray(image)
    if "16 bits" not in image.info:
        return pixels
    other = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    low = _load_as(source, lambda mode: mode[:-1].replace("RGBa", "RGBA") + other.get(mode[-1], mode[-1]))
    both: NDArray[np.uint16] = pixels.astype(np.uint16) << 8 | np.asarray(low)
    return both


_ZEROS = 64
"""A run of this many zero bytes in the pixels of a JPEG is damage, unless it can be an area of one colour."""


def file_content(source: PictureFile) -> bytes:
    """Return the whole content of a file."""
    if isinstance(source, str | Path):
        return Path(source).read_bytes()
    source.seek(0)
    return source.read()


def refuse_damaged_png(source: PictureFile) -> None:
    """Raise ``OSError`` if the pixels of a PNG do not have the checksum that the file states.

    Pillow does not check this. It may decode pixels that a failed copy has left as zeros.
    """
    chunks = takewhile(lambda chunk: chunk[0] != b"IEND", _png_chunks(file_content(source)))
    if any(name == b"IDAT" and not intact for name, _, intact in chunks):
        raise OSError("image file is damaged: the pixels of the PNG have another checksum")


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield the chunks of a PNG: the name, all bytes, and whether the chunk has the checksum that it states."""
    at = 8
    while at + 12 <= len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4])
        whole = content[at:end]
        yield whole[4:8], whole, zlib.crc32(whole[4:-4]) == int.from_bytes(whole[-4:])
        at = end


def refuse_damaged_jpeg(source: PictureFile) -> None:
    """Raise ``OSError`` if the end of a JPEG is missing, or if a part of it is zeros, as after a failed copy.

    Pillow raises no error for the zeros, but decodes them as grey. Two kinds of damage are not noticed here: zeros
    between the pixels of a progressive JPEG, and a part that comes from another JPEG. libjpeg warns of such a part, but
    its warnings do not reach Pillow.
    """
    content = file_content(source)
    at, segments = 2, list[tuple[int, bytes]]()
    while content[at : at + 1] == b"\xff" and content[at + 1 : at + 2] not in (b"\xda", b""):  # up to the pixels
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4]) if content[at + 1] != 0xFF else at + 1
        segments.append((content[at + 1], content[at + 4 : end]))
        at = end
    if (end := content.find(b"\xff\xd9", at)) < 0:
        raise OSError("image file is truncated: the end of the JPEG is missing")
    pixels = content[at:end].rstrip(b"\0")  # zeros before the end marker replace no pixels
    if bytes(_ZEROS) in pixels and not _may_hold_zeros(segments, pixels[:8]):
        raise OSError("image file is damaged: a part of the JPEG is zeros")


def ends_in_zeros(source: PictureFile) -> bool:
    """Return whether a file is zeros from a multiple of 4,096 bytes to its end, as after an incomplete copy.

    Fewer than ``_ZEROS`` zeros do not count. A plain area can be zeros too, but seldom begins there. Pillow decodes
    both without an error.
    """
    with open(source, "rb") if isinstance(source, str | Path) else nullcontext(source) as stream:
        stream.seek(max(0, stream.seek(0, io.SEEK_END) - _ZEROS))
        if stream.read().strip(b"\0"):
            return False
    content = file_content(source)
    length = len(content.rstrip(b"\0"))
    return length % 4096 == 0 and len(content) - length >= _ZEROS


def _may_hold_zeros(segments: Iterable[tuple[int, bytes]], scan: bytes) -> bool:
    """Return whether a run of zero bytes can be an area of one colour.

    It can if zero is the code for a block of one colour. A JPEG that is progressive or has several scans is not
    examined: the result is ``True``.

    ``segments``: (marker, content) of the segments before the pixels; ``scan``: the beginning of the segment ``SOS``.
    """
    first_codes, components = dict[int, int](), 0
    for marker, content in segments:
        if marker in (0xC0, 0xC1) and len(content) > 5:  # baseline
            components = content[5]
        while marker == 0xC4 and len(content) > 17:  # Huffman tables: kind, 16 counts, and the values by their codes
            first_codes[content[0]] = content[17]
            content = content[17 + sum(content[1:17]) :]
    table_of_brightness = 0x10 | (scan[6] & 15)
    return components != scan[4] or not first_codes.get(table_of_brightness)


def _without_metadata(content: bytes) -> list[bytes]:
    """Return two copies of a PNG or JPEG file. The first has no metadata except the EXIF part; the second has none.

    For any other file, the list is empty.
    """
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        chunks = [
            (name, whole)
            for name, whole, intact in _png_chunks(content)
            if name[:1].isupper() or name == b"tRNS" or (name == b"eXIf" and intact)
        ]
        pieces = [(name == b"eXIf", whole) for name, whole in chunks]
        start = content[:8]
    elif content.startswith(b"\xff\xd8"):
        pieces, at, start = [], 2, content[:2]
        while content[at : at + 1] == b"\xff" and content[at + 1] != 0xDA:
            end = at + 2 + int.from_bytes(content[at + 2 : at + 4])
            marker, is_exif = content[at + 1], content[at + 4 : at + 8] == b"Exif"
            if is_exif or not (0xE1 <= marker <= 0xEF or marker == 0xFE) or marker == 0xEE:  # 0xEE: Adobe's colours
                pieces.append((is_exif, content[at:end]))
            at = end
        pieces.append((False, content[at:]))
    else:
        return []
    return [start + b"".join(whole for is_exif, whole in pieces if kept or not is_exif) for kept in (True, False)]


def tiff_tag(image: Image.Image, number: int, default: int) -> int:
    """Return the first value of a tag of a TIFF, or ``default`` for other files and missing tags."""
    with suppress(Exception):
        value = image.tag_v2.get(number, default)  # type: ignore[attr-defined]
        return int(value[0] if isinstance(value, tuple) else value)
    return default


def has_opacity(image: Image.Image) -> bool:
    """Return whether an image has a transparent colour or an opacity channel, see :mod:`bolt.clip.image_files`."""
    if not image.has_transparency_data or image.format in _WITH_OPACITY or image.mode == "P":
        return image.has_transparency_data
    if image.format == "TIFF" and tiff_tag(image, _EXTRA_SAMPLES, 0) not in (1, 2):
        return False
    counts = image.getchannel(image.getbands()[-1]).histogram()
    return 0 < sum(counts[1:]) <= 2 * counts[255]
