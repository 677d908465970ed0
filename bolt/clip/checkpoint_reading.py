"""Reads the tensors of a checkpoint file; never runs code from the file."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
_MAX_DEPTH = 4


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint, by the names in the file, onto the CPU.

    Args:
        path: a ``.safetensors`` file; a ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` file written by ``torch.save``; the
            index file of a checkpoint in parts; or a folder with one of these.

    Raises:
        UnreadableCheckpoint: for any other file, and for one that holds pickled objects other than tensors. The message
            says how to convert it.
    """
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(Path(path)):
        tensors |= _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    return tensors


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError) as error:
        raise UnreadableCheckpoint(f"{file} is not a complete safetensors file{_lfs_hint(file)}: {error}") from None


def _read_torch(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a ``torch.save`` file, also inside wrapper dictionaries such as ``{"state_dict": ...}``."""
    if is_torchscript(file):
        raise UnreadableCheckpoint(
            f"{file} is a TorchScript program, not a dictionary of tensors; convert it with "
            "torch.save(torch.jit.load(FILE).state_dict(), NEW)"
        )
    zipped = False
    try:
        zipped = zipfile.is_zipfile(file)
        # A file that is not a zip archive has the format of torch before 1.6, which cannot be memory-mapped.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of plain pickles; they are refused below
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except MemoryError:
        raise
    except Exception as error:  # torch, pickle and zipfile raise many kinds for a damaged file
        raise UnreadableCheckpoint(_why_unreadable(file, zipped, error)) from None
    return _unwrap(loaded, file)


def _unwrap(loaded: Any, file: Path) -> dict[str, Tensor]:
    content = loaded
    for _ in range(_MAX_DEPTH):
        if not isinstance(content, Mapping):
            break
        tensors = {
            name: value for name, value in content.items() if isinstance(value, Tensor) and isinstance(name, str)
        }
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None and tensors:
            return tensors
        if inner is None:
            break
        content = inner
    found = (
        f"a mapping of {', '.join(map(str, list(content)[:5]))}"
        if isinstance(content, Mapping)
        else f"a {type(content).__name__}"
    )
    raise UnreadableCheckpoint(f"{file} holds no dictionary of tensors, but {found}")


def _why_unreadable(file: Path, zipped: bool, error: Exception) -> str:
    """Say why torch cannot read a file and, for pickled objects, which classes they need and how to convert them."""
    if not isinstance(error, pickle.UnpicklingError):
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{file} is not a complete file of torch.save{_lfs_hint(file)}: {first}"
    classes: list[str] = []
    if zipped:
        with suppress(Exception):  # a damaged file
            classes = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
    if not classes and "Unsupported global" not in str(error):
        return f"{file} is not a file of torch.save{_lfs_hint(file)}"
    what = f" ({', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''})" if classes else ""
    return (
        f"{file} holds pickled Python objects{what}, and loading those can run any code. If you trust the file, "
        "convert it to tensors in an environment that has its classes: torch.save(torch.load(FILE, "
        "weights_only=False).state_dict(), NEW)"
    )


def is_torchscript(file: Path) -> bool:
    """Return whether a file is a TorchScript program, as OpenAI publishes its CLIP models."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def _lfs_hint(file: Path) -> str:
    """Return a hint if the file is a git-lfs pointer: the most common cause of a file that is too short."""
    with file.open("rb") as stream:
        pointer = stream.read(40).startswith(b"version https://git-lfs")
    return " (it is a git-lfs pointer: run git lfs pull)" if pointer else ""
