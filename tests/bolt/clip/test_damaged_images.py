"""Damaged images: metadata that Pillow cannot read is ignored, and missing pixels are refused or remarked."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from bolt.clip.image_files import UNREADABLE, Reading, open_image, read_as
from tests.bolt.clip.conftest import chunk, content, pixel, png

RED = (200, 40, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_make_a_readable_picture_unreadable(kind: str) -> None:
    image = Image.new("RGB", (40, 20), RED)
    read = open_image(io.BytesIO(content(image, kind, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\x12\x01", quality=95)))
    assert read.size == (40, 20)
    assert not read_as(read).turned
    assert np.abs(np.array(pixel(read)) - RED).max() <= 3


def itxt(size: int) -> bytes:
    """Return a text chunk of a PNG that is too large for Pillow."""
    return chunk(b"zTXt", b"workflow\0\0" + zlib.compress(b"x" * size))


@pytest.mark.parametrize(
    "extra",
    [
        itxt(PngImagePlugin.MAX_TEXT_CHUNK + 1),
        b"".join(itxt(PngImagePlugin.MAX_TEXT_CHUNK - 1) for _ in range(70)),
        chunk(b"tEXt", b"no end", wrong=1),
        chunk(b"tIME", b"\0"),
        chunk(b"tIME", b"\x07\xe8\1\1\1\1\1", wrong=7),
        chunk(b"iCCP", b"name\0\0not compressed"),
        chunk(b"iCCP", b"\0"),
        chunk(b"pHYs", b"\0\0"),
        chunk(b"gAMA", b""),
        chunk(b"cHRM", b"\0\1"),
        chunk(b"eXIf", b"\xff" * 30, wrong=3),
        chunk(b"iTXt", b"\xff\xff"),
        chunk(b"acTL", b"\0"),
    ],
    ids=lambda data: data[4:8].decode(),
)
@pytest.mark.filterwarnings("ignore:Invalid APNG")
def test_damaged_chunks_do_not_make_a_readable_png_unreadable(extra: bytes) -> None:
    image = open_image(io.BytesIO(png([RED, (1, 2, 3)], 8, 2, extra=extra)))
    assert [pixel(image, (0, 0)), pixel(image, (1, 0))] == [list(RED), [1, 2, 3]]


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


@pytest.mark.parametrize(
    "extra",
    [
        segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x1a\0\5\0\0\0\1\xff\xff\xff\xff"),
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta"),
        segment(0xE2, b"ICC_PROFILE\0\1\2damaged"),
        segment(0xE2, b"ICC_PROFILE\0"),
        segment(0xE2, b"MPF\0II*\0\xff\xff\xff\xff"),
        segment(0xE2, b"MPF\0"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\x04\xff"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\3\xed\0\0\0\0\0\3\1\1\1"),
        segment(0xFE, b"\xff\xfe\xff"),
    ],
    ids=["exif", "xmp", "icc", "icc short", "mpf", "mpf short", "photoshop", "resolution", "comment"],
)
@pytest.mark.filterwarnings("ignore")
def test_damaged_segments_do_not_make_a_readable_jpeg_unreadable(extra: bytes) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = content(Image.new("RGB", (40, 20), RED), "JPEG", exif=exif, quality=95)
    image = open_image(io.BytesIO(whole[:2] + extra + whole[2:]))
    assert np.abs(np.array(pixel(image)) - RED).max() <= 3
    assert image.size in ((20, 40), (40, 20))  # not turned if the damaged EXIF comes first


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_pixels_are_refused(kind: str, share: float) -> None:
    data = content(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)), kind)
    for opened in (io.BytesIO, lambda part: Image.open(io.BytesIO(part))):
        with pytest.raises(UNREADABLE):
            open_image(opened(data[: int(share * len(data))]))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_with_a_hole_is_refused_and_an_even_area_is_not(mode: str) -> None:
    """Pillow shows the hole as grey. In a JPEG with tables of its own, an even area is zeros, too."""
    photo = np.random.default_rng(0).integers(90, 160, (300, 400, 3)).astype(np.uint8)
    whole = content(Image.fromarray(photo).convert(mode), "JPEG")
    assert open_image(io.BytesIO(whole)).size == (400, 300)
    middle = len(whole) // 2
    with pytest.raises(OSError, match="a part of the JPEG is zeros"):
        open_image(io.BytesIO(whole[:middle] + bytes(4096) + whole[middle + 4096 :]))
    even = content(Image.new(mode, (3000, 3000), "white"), "JPEG", optimize=True)
    assert bytes(64) in even
    assert open_image(io.BytesIO(even)).size == (3000, 3000)
    progressive = content(Image.new(mode, (3000, 3000), "white"), "JPEG", progressive=True)
    assert open_image(io.BytesIO(progressive)).size == (3000, 3000)


def test_a_png_whose_second_half_is_zeros_is_refused() -> None:
    """Regression: Pillow shows another colour in place of the zeros."""
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)).resize((120, 120)).save(file, "PNG")
    whole = file.getvalue()
    damaged = whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)
    assert Image.open(io.BytesIO(damaged)).convert("L").size == (120, 120)
    with pytest.raises(OSError, match="the pixels of the PNG have another checksum"):
        open_image(io.BytesIO(damaged))


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "WEBP", "AVIF"])
def test_a_file_whose_last_blocks_are_zeros_is_remarked(kind: str) -> None:
    """Regression: Pillow shows black or other colours in their place, and nothing was said."""
    whole = content(Image.fromarray(np.random.default_rng(0).integers(1, 256, (200, 300, 3), np.uint8)), kind)
    damaged = whole[:8192] + bytes(len(whole) - 8192)
    assert "incomplete copy" in read_as(open_image(io.BytesIO(damaged))).remarks[0]
    assert not read_as(open_image(io.BytesIO(whole))).remarks


def test_a_jpeg_whose_second_half_is_zeros_is_refused_and_one_with_zeros_after_its_pixels_is_not() -> None:
    """Pillow shows the zeros as grey. A copy to a failing disk has the size of the whole file."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    data = content(Image.fromarray(pixels), "JPEG", quality=90)
    half = len(data) // 2
    with pytest.raises(OSError, match="truncated"):
        open_image(io.BytesIO(data[:half] + bytes(len(data) - half)))
    whole = np.asarray(open_image(io.BytesIO(data)))
    for trailer in (bytes(99), b"\0\0\0\x18ftypmp42", b"\xff\xda"):
        assert np.array_equal(np.asarray(open_image(io.BytesIO(data + trailer))), whole)
    filled = data[:-2] + bytes(99) + data[-2:]
    assert np.array_equal(np.asarray(open_image(io.BytesIO(filled))), whole), "the zeros replace no pixels"
    benchmark = open_image(io.BytesIO(data[:half] + bytes(half)), Reading(upright=False))
    assert benchmark.size == (300, 200), "published numbers were measured with such images"
