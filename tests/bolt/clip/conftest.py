"""A small frozen tower, a CLIP whose tower was fine-tuned from it, and encoded images."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from tests.helpers.towers import random_clip


@pytest.fixture(scope="session")
def frozen() -> ImageTower:
    return ImageTower.from_open_clip(random_clip(quick_gelu=True).visual)


@pytest.fixture(scope="session")
def tuned(frozen: ImageTower) -> dict[str, Tensor]:
    generator = torch_generator("tuned")
    return {n: t + 0.02 * torch.randn(t.shape, generator=generator) for n, t in frozen.state_dict_open_clip().items()}


@pytest.fixture(scope="session")
def tuned_clip(tuned: dict[str, Tensor]) -> open_clip.CLIP:
    model = random_clip(quick_gelu=True)
    model.visual.load_state_dict(tuned)
    return model


def content(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def pixel(image: Image.Image, at: tuple[int, int] = (1, 1)) -> Any:
    found = image.getpixel(at)
    return list(found) if isinstance(found, tuple) else found


def png(row: Any, depth: int, kind: int, key: Any = None, extra: bytes = b"") -> bytes:
    """Return a PNG file with one row of pixels."""
    values = np.array(row).astype(">u2" if depth == 16 else "u1")
    header = struct.pack(">IIBBBBB", len(values), 1, depth, kind, 0, 0, 0)
    transparent = chunk(b"tRNS", np.array(key, ">u2").tobytes()) if key is not None else b""
    body = chunk(b"IDAT", zlib.compress(b"\0" + values.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + transparent + body + chunk(b"IEND", b"")


def chunk(name: bytes, data: bytes, wrong: int = 0) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data) ^ wrong)
