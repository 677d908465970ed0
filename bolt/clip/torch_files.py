"""Reads a file of ``torch.save`` or a TorchScript archive without running code from the file.

Both kinds of file are zip archives with a pickle, ``data.pkl``, and one uncompressed member for each storage. This
module's unpickler creates tensors and plain values only. An object of any other class becomes a :class:`Foreign`, which
keeps the object's state; the class is not loaded. Storages are mapped from the file, so an unused tensor takes no
memory.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

_LARGEST_PICKLE = 64 * 2**20
"""Largest pickle that is read. The pickle of a state dictionary has about 100 bytes per tensor."""

_STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}


class Foreign:
    """An object of a class that is not loaded.

    Attributes:
        state: the object's state in the file; ``None`` if there is none.
        class_name: module and name of the class.
    """

    state: Any = None
    class_name = ""

    def __new__(cls, *args: object, **kwargs: object) -> Foreign:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: object) -> Foreign:
        return Foreign()

    def append(self, item: object) -> None: ...

    def extend(self, items: object) -> None: ...

    def add(self, item: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    @property
    def is_script_module(self) -> bool:
        """Whether the object is a module of TorchScript, whose state holds tensors and modules by name."""
        return self.class_name.startswith("__torch__.")

    @property
    def is_module(self) -> bool:
        """Whether the object is a pickled ``torch.nn.Module``."""
        return isinstance(self.state, dict) and "_modules" in self.state


class UnsafeFile(ValueError):
    """An archive is damaged, or has a structure that ``torch.save`` never writes."""


def read_zip(file: Path) -> Any:
    """Return the object in a zip archive of PyTorch. Its tensors are mapped from the file.

    Raises ``UnsafeFile``, or what zipfile and pickle raise for a damaged file.
    """
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        pickles = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise UnsafeFile("it is a zip archive, but not of PyTorch: unpack it, and give a file in it")
        folder = pickles[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and (archive.getinfo(order).file_size > 6 or archive.read(order) != b"little"):
            raise UnsafeFile("its byte order is not that of this machine")
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)

        def record(name: str) -> tuple[int, int]:
            """Return the position of a member's first byte, and the number of bytes."""
            member = archive.getinfo(folder + name)
            if member.compress_type != zipfile.ZIP_STORED:
                raise UnsafeFile("its members are compressed, which torch.save never does")
            header = mapped[member.header_offset : member.header_offset + 30]
            start = member.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
            if start + member.file_size > len(mapped):
                raise UnsafeFile(f"{folder}{name} ends after the end of the file")
            return start, member.file_size

        start, size = record("data.pkl")
        if size > _LARGEST_PICKLE:
            raise UnsafeFile(f"its pickle has {size / 2**20:.0f} MiB, which no dictionary of tensors needs")

        def storage(key: str, dtype: torch.dtype, numel: int) -> Tensor:
            start, size = record(f"data/{key}")
            if not 0 <= numel * dtype.itemsize <= size:
                raise UnsafeFile(f"its tensor {key} states {numel} elements, but has {size} bytes")
            if numel == 0:
                return torch.empty(0, dtype=dtype)
            return torch.frombuffer(mapped, dtype=dtype, count=numel, offset=start)

        return _Unpickler(io.BytesIO(mapped[start : start + size]), storage).load()


def read_pickle(stream: BinaryIO) -> Any:
    """Return the plain values in a pickle without running code; an object of a class becomes a :class:`Foreign`.

    Raises ``UnsafeFile`` for a tensor, and what pickle raises for a damaged file.
    """

    def no_storage(key: str, dtype: torch.dtype, numel: int) -> Tensor:
        raise UnsafeFile("it holds a tensor")

    return _Unpickler(stream, no_storage).load()


class _Unpickler(pickle._Unpickler):
    """Unpickles tensors and plain values.

    The base class is Python's unpickler, because the unpickler in C allocates as much memory as a damaged file demands.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)
    for _opcode in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.BYTEARRAY8, pickle.NEXT_BUFFER):
        del dispatch[_opcode[0]]

    def __init__(self, stream: BinaryIO, storage: Callable[[str, torch.dtype, int], Tensor]) -> None:
        super().__init__(stream, encoding="utf-8")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        own: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self._tensor_of_dtype,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
            ("torch._tensor", "_rebuild_from_type_v2"): lambda rebuild, _, args, *__: rebuild(*args),
        }
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return own.get((module, name)) or type("Foreign", (Foreign,), {"class_name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Tensor:
        kind, dtype, key, _, numel, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            held = getattr(dtype, "class_name", "")
            raise UnsafeFile(
                f"it holds quantised weights ({held})" if ".Q" in held else "it refers to an external object, no tensor"
            )
        return self._storage(str(key), dtype, int(numel))

    def load_build(self) -> None:
        """Take an object's state from the pickle, and keep it only if the object is a :class:`Foreign`.

        For any other object the state is dropped. Python's own unpickler would set the object's attributes from it.
        """
        state = self.stack.pop()
        if isinstance(self.stack[-1], Foreign):
            self.stack[-1].state = state

    dispatch[pickle.BUILD[0]] = load_build

    def _tensor(self, storage: Tensor, offset: int, size: Any, stride: Any, *_: object) -> Any:
        found = storage.as_strided(tuple(size), tuple(stride), offset)
        if found.numel() > storage.numel():  # strides of 0 could turn a few bytes into terabytes
            raise UnsafeFile(f"a tensor {tuple(size)} is larger than its storage")
        return found

    def _tensor_of_dtype(
        self, storage: Tensor, offset: int, size: Any, stride: Any, _: bool, __: Any, dtype: torch.dtype, *___: object
    ) -> Any:
        return self._tensor(storage.view(dtype), offset, size, stride)
