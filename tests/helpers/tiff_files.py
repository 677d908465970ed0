"""Small TIFF files with any tags, as programs of remote sensing write them."""

import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def write_tiff(
    path: Path,
    values_HWC: NDArray[np.generic],
    photometric: int,
    extra: list[int] | None = None,
    *,
    bits: int | None = None,
    data: bytes | None = None,
    number: int = 1,
    order: Literal["<", ">"] = "<",
    packed: bool = False,
) -> None:
    """Write values in one strip.

    ``extra`` is the tag ExtraSamples. ``bits`` and ``data`` give numbers of a size that NumPy lacks. ``number`` is the
    tag SampleFormat: 3 for floating point. ``order`` is that of the bytes; ``packed`` compresses the values.
    """
    height, width, bands = values_HWC.shape
    data = values_HWC.astype(values_HWC.dtype.newbyteorder(order)).tobytes() if data is None else data
    data = zlib.compress(data) if packed else data
    each = bits or values_HWC.dtype.itemsize * 8
    tags: dict[int, list[Any]] = {
        256: [width], 257: [height], 258: [each] * bands, 259: [8 if packed else 1], 262: [photometric], 273: [0],
        277: [bands], 278: [height], 279: [len(data)], 284: [1], 339: [number] * bands,
    }  # fmt: skip
    if extra is not None:
        tags[338] = extra
    after = 8 + 2 + 12 * len(tags) + 4
    longer = sum(2 * len(values) for values in tags.values() if len(values) > 2)
    entries, tail = b"", b""
    for tag, values in sorted(tags.items()):
        kind, letter = (4, "I") if tag in (273, 279) else (3, "H")
        values = [after + longer] if tag == 273 else values
        raw = struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(raw) > 4:
            raw, tail = struct.pack(f"{order}I", after + len(tail)), tail + raw
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + raw.ljust(4, b"\0")
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    path.write_bytes(start + entries + b"\0" * 4 + tail + data)
