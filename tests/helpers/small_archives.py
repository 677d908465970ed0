"""A small dataset of random images as a tar or zip archive, and its catalog entry."""

import hashlib
import io
import tarfile
import zipfile
from typing import Any

import numpy as np
from PIL import Image

from orchestrator.catalog import DatasetEntry

CLASSES = ("cat", "dog")
PER_CLASS = 5


def picture(seed: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


CONTENT = {f"pets/{name}/{i}.png": picture(10 * c + i) for c, name in enumerate(CLASSES) for i in range(PER_CLASS)}


def tar_of(content: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, body in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return stream.getvalue()


def zip_of(content: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, body in content.items():
            archive.writestr(name, body)
    return stream.getvalue()


BODY = tar_of(CONTENT)


def entry_of(url: str, body: bytes | None = BODY, **changes: Any) -> DatasetEntry:
    route: dict[str, Any] = {"kind": "archive", "url": url, "layout": "class_folders"}
    if body is not None:
        route["checksum"] = f"sha256:{hashlib.sha256(body).hexdigest()}"
    fields: dict[str, Any] = {
        "name": "pets",
        "title": "Pets",
        "domain": "own",
        "route": route,
        "prompts": ["a photo of a {}."],
        "classes": 2,
        "sizes": {"train": 8, "test": 2},
        "splits": {"recipe": "eighty_twenty"},
        "licence": "CC0",
        **changes,
    }
    return DatasetEntry.model_validate(fields)
