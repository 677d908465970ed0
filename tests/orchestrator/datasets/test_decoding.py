"""Pixels of images of every mode: equal to open_clip's where it supports the mode, else as this project documents."""

import io

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels, rgb_pixels
from orchestrator.datasets.images import capped_pixels

SHAPES = [(100, 75), (75, 100), (31, 90), (32, 32), (28, 28), (33, 47), (1, 5), (227, 401), (640, 224), (337, 336)]


def noise(width: int, height: int) -> Image.Image:
    """Make a random image with detail at every scale."""
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 2, :, 0] = 200
    return Image.fromarray(pixels)


def stored(image: Image.Image, kind: str, **options: object) -> Image.Image:
    """Write an image to a file and read it."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    stream.seek(0)
    return Image.open(stream)


def open_clip_pixels(image: Image.Image, size: int) -> torch.Tensor:
    transform = open_clip.image_transform(size, is_train=False, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    pixels: torch.Tensor = transform(image)
    return pixels


def check_equal_to_open_clip(image: Image.Image, reference: Image.Image, size: int) -> None:
    ours = torch.from_numpy(evaluation_pixels(image, InputSize(size))).float().div(255)
    assert torch.equal(ours, open_clip_pixels(reference, size))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [32, 224, 336])
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_pixels_equal_those_of_open_clip(shape: tuple[int, int], size: int, mode: str, kind: str) -> None:
    image = stored(noise(*shape).convert(mode), kind)
    check_equal_to_open_clip(image, image, size)


@pytest.mark.parametrize("mode", ["P", "1", "CMYK", "YCbCr", "HSV", "LAB"])
@pytest.mark.parametrize("shape", [(100, 75), (20, 33)])
def test_other_modes_are_converted_to_rgb_before_resizing(mode: str, shape: tuple[int, int]) -> None:
    image = noise(*shape).convert("RGB").convert(mode) if mode != "LAB" else Image.new("LAB", shape, (120, 20, 200))
    check_equal_to_open_clip(image, image.convert("RGB"), 32)


def test_a_palette_image_is_not_resized_by_nearest_neighbour() -> None:
    image = noise(100, 75).quantize(16)
    assert not torch.equal(torch.from_numpy(evaluation_pixels(image, InputSize(32))) / 255, open_clip_pixels(image, 32))
    assert len(np.unique(evaluation_pixels(image, InputSize(32)).reshape(3, -1), axis=1).T) > 16


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_an_opaque_alpha_channel_changes_nothing(mode: str) -> None:
    plain = noise(50, 40).convert("L").convert("RGB")
    image = plain.convert("RGBA")
    if mode == "PA":
        indexed = plain.quantize(16)
        image, plain = indexed.convert("PA"), indexed.convert("RGB")
    check_equal_to_open_clip(image.convert(mode), plain, 32)


@pytest.mark.parametrize("size", [8, 16], ids=["resized", "as it is"])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa", "La"])
def test_transparent_pixels_are_white_whatever_their_colour(mode: str, size: int) -> None:
    pixels = np.zeros((16, 16, 4), dtype=np.uint8)
    pixels[:, :8] = (40, 40, 40, 255)
    pixels[:, 8:] = (90, 90, 90, 0)
    image = Image.fromarray(pixels)
    image = image.convert("LA").convert("La") if mode == "La" else image.convert(mode)
    row = evaluation_pixels(image, InputSize(size))[:, 0]
    assert row[:, 0].tolist() == [40] * 3
    assert row[:, -1].tolist() == [255] * 3


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_a_transparent_colour_of_a_png_is_white(mode: str) -> None:
    image = Image.new("RGB", (6, 6), (250, 0, 0))
    image.paste((0, 0, 250), (0, 0, 3, 6))
    image = image.convert("P", palette=Image.Palette.ADAPTIVE) if mode == "P" else image.convert(mode)
    key = image.getpixel((5, 0))
    read = stored(image, "PNG", transparency=key)
    assert read.mode == mode
    pixels = rgb_pixels(read)
    assert pixels[:, 0, 5].tolist() == [255, 255, 255]
    assert pixels[:, 0, 0].tolist() == np.asarray(image.convert("RGB"))[0, 0].tolist()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_and_not_clipped(kind: str) -> None:
    values = np.array([[0, 128, 129, 257, 32896, 65535]], dtype=np.uint16)
    image = stored(Image.fromarray(values), kind)
    assert image.mode == "I;16"
    assert rgb_pixels(image)[0].tolist() == [[0, 0, 1, 1, 128, 255]]
    assert rgb_pixels(Image.new("I;16B", (2, 2), 32896)).tolist() == np.full((3, 2, 2), 128).tolist()


@pytest.mark.parametrize(
    ("mode", "kind", "values", "read", "refused"),
    [
        ("I", np.int32, [0, 257, 65535], [0, 1, 255], (65536, -1)),
        ("F", np.float32, [0.0, 0.5, 1.0], [0, 128, 255], (1.5, -0.1, float("nan"), float("inf"))),
    ],
    ids=["as 16-bit grey", "from 0 to 1"],
)
def test_32_bit_numbers_in_their_range_are_scaled_and_others_refused(
    mode: str, kind: type, values: list[float], read: list[int], refused: tuple[float, ...]
) -> None:
    image = stored(Image.fromarray(np.array([values], dtype=kind)), "TIFF")
    assert image.mode == mode
    assert rgb_pixels(image)[0].tolist() == [read]
    for value in refused:
        with pytest.raises(ValueError, match=f"0 to {int(values[-1])}"):
            rgb_pixels(Image.fromarray(np.array([[0, value]], dtype=kind)))


def test_capped_pixels_keep_the_shape_and_cap_the_short_side() -> None:
    assert capped_pixels(noise(60, 50).convert("L"), 64).shape == (3, 50, 60)
    assert capped_pixels(noise(400, 200), 64).shape == (3, 64, 128)
