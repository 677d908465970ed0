"""Reading every tensor of a checkpoint file without running code from it."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
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
    """Every tensor of a checkpoint by its own name, on the CPU.

    Args:
        path: ``.safetensors``; ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` of ``torch.save``, of which only tensors are
            read; the index of a checkpoint in parts; or a folder that holds one of these.

    Raises:
        UnreadableCheckpoint: for anything else, with what its owner can do about it. No code of a file is ever run.
    """
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(Path(path)):
        tensors |= _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    return tensors


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError) as error:
        raise UnreadableCheckpoint(f"{file} is not a whole safetensors file{_lfs_hint(file)}: {error}") from None


def _read_torch(file: Path) -> dict[str, Tensor]:
    """Tensors that ``torch.save`` wrote, found through the wrappers training scripts put around them."""
    zipped = zipfile.is_zipfile(file)
    if zipped and _is_torchscript(file):
        raise UnreadableCheckpoint(
            f"{file} is a TorchScript program, not a dictionary of tensors; its owner turns it into one with "
            "torch.save(torch.jit.load(FILE).state_dict(), NEW)"
        )
    try:
        # A file that is not a zip archive has the format before torch 1.6, which cannot be mapped into memory.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of plain pickles, which are refused below
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise UnreadableCheckpoint(_explain_pickle(file, zipped, error)) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableCheckpoint(f"{file} is not a whole file of torch.save{_lfs_hint(file)}: {first}") from None
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


def _explain_pickle(file: Path, zipped: bool, error: Exception) -> str:
    """Why a file that wants to import code is refused, and how its owner makes one that is read."""
    classes: list[str] = []
    if zipped:
        classes = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
    elif "Unsupported global" not in str(error):
        return f"{file} is not a file of torch.save{_lfs_hint(file)}"
    what = f" ({', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''})" if classes else ""
    return (
        f"{file} holds pickled Python objects{what}, and reading those can run any code; whoever trusts the file turns "
        "it into tensors, where its classes can be imported: torch.save(torch.load(FILE, "
        "weights_only=False).state_dict(), NEW)"
    )


def _is_torchscript(file: Path) -> bool:
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _lfs_hint(file: Path) -> str:
    """A word on the most common cause of a file that is too short."""
    with file.open("rb") as stream:
        pointer = stream.read(40).startswith(b"version https://git-lfs")
    return " (it is a git-lfs pointer: run git lfs pull)" if pointer else ""
