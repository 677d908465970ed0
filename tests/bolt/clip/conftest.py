"""A small frozen tower, a CLIP whose tower was fine-tuned from it, and encoded images."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor

from bolt.clip.checkpoint_conversion import ConvertedTower, convert_image_tower
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from tests.helpers.towers import random_clip

State = dict[str, Tensor]


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


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def convert(content: Any, path: Path, frozen: ImageTower) -> ConvertedTower:
    """Write a checkpoint as a program does, and read its image tower."""
    torch.save(content, path)
    return convert_image_tower(read_checkpoint(path), frozen)


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
