"""Reads the tensors of a checkpoint file, and never runs code from the file.

The content of a file, not the suffix, decides how the file is read. A tensor in nested dictionaries is named by the
path of keys, such as ``state_dict.visual.proj``. Name parts that PyTorch's wrappers add, such as ``module.``, are
removed.
"""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.checkpoint_files import ADAPTER_CONFIG, UnreadableCheckpoint, checkpoint_files
from bolt.clip.torch_files import Foreign, read_zip
from bolt.util.json_text import read_json

_WRAPPERS = frozenset(
    {
        "module",  # data-parallel training
        "_module",  # Opacus
        "_orig_mod",  # torch.compile
        "_fsdp_wrapped_module",
        "_checkpoint_wrapped_module",
        "_forward_module",  # Lightning
        "base_layer",  # peft
    }
)
"""Parts of tensor names that wrappers around modules add."""

_MAX_DEPTH = 24
_OPENAI_SIZES = frozenset({"input_resolution", "context_length", "vocab_size"})


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        tensors: the tensors by name, without the parts that wrappers add.
        settings: the numbers and words in the file, or in the ``adapter_config.json`` of a LoRA, by name.
        of_openai: whether the file has the form of the archives in which OpenAI publishes its CLIPs. All of these CLIPs
            use QuickGELU.
    """

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    of_openai: bool = False


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Read every tensor of a checkpoint onto the CPU.

    Args:
        path: a safetensors file, a file of ``torch.save``, a TorchScript archive, the index file of a checkpoint in
            parts, or a folder with one of these files.

    Raises:
        UnreadableCheckpoint: for any other file, a damaged file, or a pickled module. The message says how to convert a
            pickled module.
    """
    tensors: dict[str, Tensor] = {}
    settings: dict[str, Any] = {}
    of_openai = False
    for file in checkpoint_files(Path(path)):
        content = _read_file(file)
        found: dict[str, Tensor] = {}
        for name, value in _named(content, "", set()):
            if isinstance(value, Tensor):
                found[name] = value
            else:
                settings[name] = value
        if not found and file.name != ADAPTER_CONFIG:
            raise UnreadableCheckpoint(f"{file} holds no dictionary of tensors, but {_kind_of(content)}")
        of_openai |= isinstance(content, Foreign) and found.keys() >= _OPENAI_SIZES
        for name, tensor in found.items():
            if ".original_module." in name:  # peft keeps a copy of the untrained module
                continue
            name = re.sub(r"\bmodules_to_save\.\w+\.", "", name)  # peft adds this for a module trained in full
            plain = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
            if plain in tensors and not torch.equal(tensors[plain], tensor):
                raise UnreadableCheckpoint(f"{file} has two different tensors for {plain}: save one model alone")
            tensors[plain] = tensor
    return Checkpoint(tensors, settings, of_openai)


def _read_file(file: Path) -> Any:
    """Return the content of one file. Raises ``UnreadableCheckpoint``."""
    with file.open("rb") as stream:
        start = stream.read(256)
    try:
        if file.name == ADAPTER_CONFIG:
            return dict(read_json(file))
        if start[:2] == b"PK":
            content = read_zip(file)
            _refuse_pickled(content, file)
        elif start[8:9] == b"{":
            return dict(load_file(file))
        elif start[:1] == b"\x80":  # the format of PyTorch before 1.6
            with warnings.catch_warnings(action="ignore"):  # PyTorch warns of plain pickles, which are refused anyway
                content = torch.load(file, map_location="cpu", weights_only=True)
        else:
            raise UnreadableCheckpoint(
                f"{file} is neither a safetensors file nor a file of torch.save{looks_like(start)}"
            )
    except (MemoryError, UnreadableCheckpoint):
        raise
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many exceptions for damaged files
        if isinstance(error, pickle.UnpicklingError):
            if "Unsupported global" in str(error):
                raise UnreadableCheckpoint(
                    f"{file} has the format of PyTorch before 1.6 and holds pickled Python objects, and loading those "
                    "can run any code. If you trust the file, save it again: "
                    "torch.save(torch.load(FILE, weights_only=False), NEW)"
                ) from None
            raise UnreadableCheckpoint(
                f"{file} is a pickle that torch.save did not write: save a dictionary of its tensors with torch.save"
            ) from None
        what = "safetensors file" if isinstance(error, SafetensorError) else "file of torch.save"
        first = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise UnreadableCheckpoint(f"{file} is not a complete {what}: {first}") from None
    return content


def _named(value: Any, name: str, above: set[int], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, numbers and words in nested dictionaries and TorchScript modules, each with its path."""
    if isinstance(value, Foreign) and value.is_script_module:
        value = value.state
    if isinstance(value, Tensor | bool | int | float | str):
        yield name, value
    elif isinstance(value, Mapping) and id(value) not in above and depth < _MAX_DEPTH:
        above.add(id(value))  # a dictionary may contain itself
        for key, inner in value.items():
            yield from _named(inner, f"{name}.{key}" if name else str(key), above, depth + 1)


def _refuse_pickled(content: Any, file: Path) -> None:
    """Raise ``UnreadableCheckpoint`` if the weights are attributes of pickled objects."""
    inner = [content, *content.values()] if isinstance(content, Mapping) else [content]
    foreign = [value for value in inner if isinstance(value, Foreign) and not value.is_script_module]
    names = [name for name, value in _named(content, "", set()) if isinstance(value, Tensor)]
    modules = any(value.is_module for value in foreign) and not any(name.endswith("class_embedding") for name in names)
    if foreign and (modules or not names):
        classes = sorted({value.class_name for value in foreign} - {""})
        shown = f" ({', '.join(classes[:3])})" if classes else ""
        arrays = ", or {k: torch.as_tensor(v) for k, v in found.items()} if its values are arrays"
        raise UnreadableCheckpoint(
            f"{file} holds pickled Python objects{shown}, and loading those can run any code. If you trust the file, "
            "convert it to tensors in an environment that has its classes: found = torch.load(FILE, weights_only=False)"
            "; torch.save(found.state_dict(), NEW), or found['model'].state_dict() if it is a dictionary"
            + (arrays if "numpy" in shown else "")
        )


def _kind_of(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a mapping of {', '.join(map(str, list(content)[:5]))}"[:200]
    return f"a {content.class_name if isinstance(content, Foreign) else type(content).__name__}"


def looks_like(start: bytes) -> str:
    """Return a hint from the first bytes of a file that is no checkpoint."""
    kinds = {
        b"version https://git-lfs": " (it is a git-lfs pointer: run git lfs pull)",
        b"<": " (it is a web page: the download failed)",
        b"\x1f\x8b": " (it is compressed: unpack it)",
        b"\x89HDF": " (it is an HDF5 file)",
        b"GGUF": " (it is a GGUF file of quantised weights)",
    }
    found = (hint for begin, hint in kinds.items() if start.lstrip().startswith(begin))
    return next(found, "" if start else " (it is empty)")
