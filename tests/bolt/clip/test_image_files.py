"""The reader of pixels: opacity, bands, depth, range, frames and orientation."""

import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bolt.clip.image_files import UNREADABLE, Reading, open_image, open_named, read_as, reading_notes
from tests.bolt.clip.conftest import content, pixel, png
from tests.helpers.tiff_files import write_tiff

RED = (200, 40, 40)
STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip
"""EXIF orientation -> the operation that makes the stored pixels from an upright picture."""
REFLECTANCES = np.random.default_rng(0).integers(200, 3000, (8, 12, 3)).astype(np.uint16)


def with_fourth_band(values: NDArray[np.generic]) -> NDArray[np.generic]:
    pixels = np.empty((*values.shape, 4), values.dtype)
    pixels[..., :3], pixels[..., 3] = RED, values
    return pixels


def infrared(dtype: str) -> NDArray[np.generic]:
    return np.random.default_rng(1).integers(20, 180, (8, 12)).astype(dtype)


@pytest.mark.parametrize("extra", [None, 0, 1, 2, 999])
@pytest.mark.parametrize("band", ["constant", "infrared", "with a border", "water"])
def test_the_fourth_band_of_a_tiff_is_no_opacity(tmp_path: Path, band: str, extra: int | None) -> None:
    values = infrared("uint8")
    if band == "constant":
        values[...] = 30
    elif band == "with a border":
        values[:, :8] = 0
    elif band == "water":
        values[...] = np.random.default_rng(2).integers(0, 4, values.shape)
    write_tiff(tmp_path / "a.tif", with_fourth_band(values), 2, None if extra is None else [extra])
    image = open_image(tmp_path / "a.tif")
    assert pixel(image, (9, 2)) == list(RED)
    assert "bands" in read_as(image).remarks[0]


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "WEBP", "TGA", "JPEG2000"])
def test_opacity_is_taken_for_what_it_is(kind: str) -> None:
    pixels = with_fourth_band(np.full((8, 12), 255, "uint8"))
    pixels[:, 6:, 3] = 0
    pixels[:, 5, 3] = 128
    options = {"lossless": True} if kind == "WEBP" else {}
    image = open_image(io.BytesIO(content(Image.fromarray(pixels), kind, **options)))
    assert (pixel(image, (1, 1)), pixel(image, (9, 1))) == (list(RED), [255] * 3)
    assert not read_as(image).remarks


def test_opacity_of_a_half_transparent_png_and_a_16_bit_colour_key_are_kept() -> None:
    half = Image.new("RGBA", (4, 4), (0, 100, 200, 128))
    assert pixel(open_image(io.BytesIO(content(half, "PNG")))) == [127, 177, 227]
    grey = Image.fromarray(np.array([[0, 300, 65535]], np.uint16))
    assert np.asarray(open_image(io.BytesIO(png([[0], [300], [65535]], 16, 0, key=[300])))).tolist() == [[0, 255, 255]]
    assert np.asarray(open_image(grey)).tolist() == [[0, 1, 255]]
    keyed = open_image(io.BytesIO(png([[5000, 600, 700], [60000, 600, 700]], 16, 2, key=[5000, 600, 700])))
    assert [pixel(keyed, (0, 0)), pixel(keyed, (1, 0))] == [[255] * 3, [60000 >> 8, 2, 2]]
    four_bits = open_image(io.BytesIO(png([0x12, 0], 4, 0, key=[1])))
    assert [pixel(four_bits, (0, 0)), pixel(four_bits, (1, 0))] == [[255] * 3, [34] * 3]


@pytest.mark.parametrize("form", ["rgb.tif", "grey.tif", "rgb.png", "grey.png", "grey.jp2", "big-endian"])
def test_measured_values_are_read_in_a_stated_range(tmp_path: Path, form: str) -> None:
    values, path = REFLECTANCES, tmp_path / form
    if "grey" in form:
        values = values[..., :1]
    if form.endswith(".tif"):
        write_tiff(path, values, 1 if "grey" in form else 2)
    elif form == "rgb.png":
        values = values[:1]
        path.write_bytes(png(values[0].tolist(), 16, 2))
    elif form == "big-endian":
        Image.fromarray(values[..., 0]).save(path, "TIFF", big_endian=True)
        values = values[..., :1]
    else:
        Image.fromarray(values[..., 0]).save(path)
    found = np.atleast_3d(np.asarray(open_image(path, Reading(range=(200, 3000)))))
    assert np.array_equal(found, np.rint((values - 200.0) * 255 / 2800))
    plain = open_image(path)
    assert np.asarray(plain).max() <= 12
    (note,) = reading_notes([read_as(plain)])
    assert "range" in note
    assert not reading_notes([read_as(open_image(path, Reading(range=(200, 3000))))], Reading(range=(200, 3000)))


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32"])
def test_compressed_numbers_of_big_endian_files_are_swapped_once(dtype: str, tmp_path: Path) -> None:
    values = np.array([[0, 100, 300]], dtype)[..., None]
    write_tiff(tmp_path / "a.tif", values, 1, number=3 if dtype == "float32" else 2, order=">", packed=True)
    assert np.asarray(open_image(tmp_path / "a.tif", Reading(range=(0, 300)))).tolist() == [[0, 85, 255]]


@pytest.mark.parametrize("options", [{"compression": "zlib"}, {"planarconfig": "separate"}], ids=["libtiff", "planes"])
def test_measured_values_in_other_layouts_are_read_whole(options: dict[str, str], tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    stored = np.moveaxis(REFLECTANCES, -1, 0) if "planarconfig" in options else REFLECTANCES
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", **options)
    found = np.asarray(open_image(tmp_path / "a.tif", Reading(range=(0, 3000))))
    assert np.array_equal(found, np.rint(REFLECTANCES * (255 / 3000)))


def test_a_photograph_has_no_note_on_its_range_and_a_dark_mask_has() -> None:
    bright, mask = (open_image(Image.fromarray(np.full((4, 4), value, np.uint8))) for value in (200, 1))
    assert not reading_notes([read_as(bright)] * 3)
    assert "range" in reading_notes([read_as(mask)] * 3)[0]
    assert np.asarray(open_image(mask, Reading(range=(0, 1)))).tolist() == np.full((4, 4), 255).tolist()
    assert "in 1 to 1, and 255 counts as white" in reading_notes([read_as(image) for image in (bright, mask, mask)])[0]


def test_values_outside_of_the_stated_range_are_remarked(tmp_path: Path) -> None:
    """Regression: photographs with ``--range 0,1`` were white without a word."""
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) + 100).save(tmp_path / "a.png")
    for high, said in ((1, "most values are outside of the range 0 to 1"), (160, ""), (100, "outside")):
        assert said in "".join(read_as(open_image(tmp_path / "a.png", Reading(range=(0, high)))).remarks)
        assert bool(said) == bool(read_as(open_image(tmp_path / "a.png", Reading(range=(0, high)))).remarks)


@pytest.mark.parametrize("size", [(20_000, 1), (2, 1000)])
def test_a_line_is_no_picture(size: tuple[int, int], tmp_path: Path) -> None:
    """Regression: for an input of 224 pixels, such a line was resized to 3 GiB."""
    Image.new("RGB", size).save(tmp_path / "line.png")
    with pytest.raises(UNREADABLE, match=f"{size[0]} x {size[1]} pixels"):
        open_image(tmp_path / "line.png")
    assert open_image(Image.new("RGB", (800, 2))).size == (800, 2)


def test_pillow_warns_of_no_large_photograph(tmp_path: Path) -> None:
    Image.new("1", (10_000, 10_000)).save(tmp_path / "large.png")
    code = "import sys; from bolt.clip.image_files import open_image; print(open_image(sys.argv[1]).size)"
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "large.png"], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("(10000, 10000)\n", "")


@pytest.mark.parametrize(
    ("values", "pixels"),
    [
        (np.array([[-9999, 0, -1, 1500, 3000]], np.int16), [0, 0, 0, 128, 255]),
        (np.array([[-5, 0, 1500, 70000]], np.int32), [0, 0, 128, 255]),
        (np.array([[np.nan, -np.inf, 1500, 9000]], np.float32), [0, 0, 128, 255]),
        (np.array([[-1, 0, 1500, 3000]], np.float64), [0, 0, 128, 255]),
    ],
)
def test_numbers_beyond_the_usual_need_a_stated_range(tmp_path: Path, values: Any, pixels: list[int]) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=[(42113, 2, 6, "-9999", True)])
    with pytest.raises(UNREADABLE, match="--range LOW,HIGH"):
        open_image(tmp_path / "a.tif")
    assert np.asarray(open_image(tmp_path / "a.tif", Reading(range=(0, 3000)))).tolist() == [pixels]


@pytest.mark.parametrize("layout", ["contig", "separate", "pages"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int16"])
def test_many_bands_are_read_with_those_that_are_chosen(tmp_path: Path, layout: str, dtype: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    cube = (np.arange(13)[None, None, :] * 10 + np.arange(5)[None, :, None] + np.zeros((4, 1, 1))).astype(dtype)
    stored = cube if layout == "contig" else np.moveaxis(cube, -1, 0)
    planar = {} if layout == "pages" else {"planarconfig": layout}
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack", **planar)
    if layout != "pages":
        with pytest.raises(UNREADABLE, match="13 bands"):
            open_image(tmp_path / "a.tif")
    reading = Reading(bands=(4, 3, 2), range=(0, 255))
    assert pixel(open_image(tmp_path / "a.tif", reading), (2, 1)) == [32, 22, 12]
    assert pixel(open_image(tmp_path / "a.tif", Reading(bands=(13,), range=(0, 255))), (2, 1)) == 122
    with pytest.raises(UNREADABLE, match="band 14"):
        open_image(tmp_path / "a.tif", Reading(bands=(14,)))


def test_bands_of_other_formats_and_of_false_opacity_can_be_chosen(tmp_path: Path) -> None:
    values = with_fourth_band(infrared("uint8"))
    Image.fromarray(values).save(tmp_path / "a.png")
    write_tiff(tmp_path / "a.tif", values, 2, [1])
    for name in ("a.png", "a.tif"):
        assert pixel(open_image(tmp_path / name, Reading(bands=(4, 1, 2))), (1, 1)) == [values[1, 1, 3], 200, 40]


def test_signed_bytes_are_not_mistaken(tmp_path: Path) -> None:
    pytest.importorskip("tifffile").imwrite(tmp_path / "b.tif", np.array([[-128, 0, 127]], np.int8))
    assert np.asarray(open_image(tmp_path / "b.tif", Reading(range=(-128, 127)))).tolist() == [[0, 128, 255]]


def test_without_tifffile_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiff(tmp_path / "a.tif", np.zeros((4, 4, 7), np.uint16), 1)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(OSError, match=r"a\.tif.*pip install tifffile"):
        open_named(tmp_path / "a.tif")


@pytest.mark.parametrize("marked", [True, False])
def test_cmyk_photographs_of_adobe_have_their_colours(marked: bool) -> None:
    whole = content(Image.new("CMYK", (16, 16), (0, 200, 200, 50)), "JPEG", quality=95)
    adobe = whole.index(b"\xff\xee")
    file = whole if marked else whole[:adobe] + whole[adobe + 16 :]
    assert np.abs(np.array(pixel(open_image(io.BytesIO(file)))) - (205, 44, 44)).max() <= 3


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_of_several_frames_is_used_and_said(kind: str) -> None:
    frames = [Image.new("RGB", (12, 12), colour) for colour in ("red", "blue", "green")]
    options = {"lossless": True} if kind == "WEBP" else {}
    image = open_image(io.BytesIO(content(frames[0], kind, save_all=True, append_images=frames[1:], **options)))
    assert pixel(image, (5, 5)) == [255, 0, 0]
    assert reading_notes([read_as(image)] * 2) == ["only the first frame is used: 2 of 2 images"]
    assert not read_as(open_image(io.BytesIO(content(frames[0], kind, **options)))).remarks


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_zero_is_white_if_the_file_says_so(tmp_path: Path, dtype: str) -> None:
    """X-rays with 16 bits were read as negatives."""
    path, light = tmp_path / "a.tif", np.array([[0, 51, 255]])[..., None]
    unit = {"uint8": 1.0, "uint16": 257.0, "float32": 1 / 255}[dtype]
    write_tiff(path, ((255 - light) * unit).astype(dtype), 0, number=3 if dtype == "float32" else 1)
    assert np.asarray(open_image(path)).tolist() == [[0, 51, 255]]
    ranged = open_image(path, Reading(range=(0, 204 * unit)))
    assert np.asarray(ranged).tolist() == [[0, 0, 255]]


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "CMYK", "RGBA"])
def test_a_tiff_on_its_side_is_not_scrambled(tmp_path: Path, mode: str) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 128, (9, 6), np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(STORED[6]).save(tmp_path / "a.tif", exif=exif)
    for source in (tmp_path / "a.tif", Image.open(tmp_path / "a.tif")):
        assert np.array_equal(np.asarray(open_image(source)), np.asarray(open_image(upright)))


def test_an_open_image_is_read_as_its_file_at_its_frame(tmp_path: Path) -> None:
    pages = [Image.new("L", (3, 3), value) for value in (10, 20)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with Image.open(tmp_path / "a.tif") as first, Image.open(tmp_path / "a.tif") as second:
        second.seek(1)
        found = [pixel(open_image(image)) for image in (first, second, first.point(lambda value: value + 1))]
    assert found == [10, 20, 11]


def test_a_tiffs_palette_may_have_eight_bits(tmp_path: Path) -> None:
    picture, palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8)), [90, 8, 7, 1, 2, 3, 255, 254, 0]
    picture.putpalette(palette + [0] * 759)
    columns = [value for start in range(3) for value in (*palette[start::3], *[0] * 253)]
    file, stored = content(picture, "TIFF"), struct.pack("<768H", *(value << 8 for value in columns))
    assert file.count(stored) == 1
    (tmp_path / "a.tif").write_bytes(file.replace(stored, struct.pack("<768H", *columns)))
    assert np.asarray(open_image(tmp_path / "a.tif")).ravel().tolist() == palette


def test_a_flat_psd_and_twelve_bits_are_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 5, 7, 8, 3) + bytes(12) + bytes(2)
    image = open_image(io.BytesIO(head + pixels.transpose(2, 0, 1).tobytes()))
    assert np.array_equal(np.asarray(image), pixels)
    assert not read_as(image).remarks
    rows = bytes([0xFF, 0xF0, 0x00, 0x80, 0x00, 0x00])  # 4095, 0, 2048, 0
    write_tiff(tmp_path / "a.tif", np.zeros((1, 4, 1), np.uint8), 1, bits=12, data=rows)
    assert np.asarray(open_image(tmp_path / "a.tif")).tolist() == [[255, 0, 128, 0]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (bytes(500), "zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab", "git lfs pull"),
        (b"\n<!DOCTYPE html><title>404</title>", "web page"),
        (b"%PDF-1.7", "PDF"),
        (b"\0\0\0\x20ftypisom" + bytes(20), "video"),
        (b"\0\0\0\x20ftypavif" + bytes(20), "AVIF, and damaged"),
        (b'{"error": "not found"}', "JSON"),
        (bytes(128) + b"DICM", "DICOM"),
        (b"pics/1.png\n", "it is text"),
        (b"\1what", "cannot read this kind"),
    ],
)
def test_what_is_no_picture_is_called_what_it_is(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(data)
    with pytest.raises(UNREADABLE, match=said):
        open_image(tmp_path / "photo.jpg")


@pytest.mark.parametrize("orientation", [*range(10), 77])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "HEIF", "AVIF"])
def test_a_photograph_of_any_orientation_is_upright_and_a_benchmarks_as_stored(kind: str, orientation: int) -> None:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    elif kind == "AVIF" and ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow does not read AVIF")
    upright = Image.new("RGB", (48, 32), (20, 20, 20))
    upright.paste((230, 60, 60), (0, 0, 24, 16))  # the upper left quarter is red
    exif = Image.Exif()
    exif[0x0112] = orientation
    as_stored = upright.transpose(STORED[orientation]) if orientation in STORED else upright
    file = content(as_stored, kind, exif=exif.tobytes(), quality=95)
    image, benchmark = open_image(io.BytesIO(file)), open_image(Image.open(io.BytesIO(file)), Reading(upright=False))
    assert image.size == (48, 32)
    assert [pixel(image, at)[0] > 128 for at in ((12, 8), (36, 8), (12, 24), (36, 24))] == [True, False, False, False]
    if kind in ("TIFF", "HEIF"):  # the readers of these formats turn the image
        assert benchmark.size == (48, 32)
    elif kind != "AVIF":
        assert benchmark.size == as_stored.size
        assert {read_as(image).turned, read_as(benchmark).turned} == {orientation in STORED}
