"""Finds the files of a checkpoint: a single file, a folder, or a checkpoint in several parts. Imports no torch."""

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from bolt.util.json_text import read_json

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pt.tar", ".pth.tar")
"""Suffixes of the checkpoints in a folder. A checkpoint that is named directly may have any suffix."""

ADAPTER_CONFIG = "adapter_config.json"
"""Name of the file in which peft states the scale of a LoRA. The file is beside the LoRA's weights."""

FOLDER_WEIGHTS = (
    "open_clip_model.safetensors",  # beside it, a repository of timm has the image tower alone in model.safetensors
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "visual.safetensors",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
"""File names under which transformers, open_clip, this project and peft save weights, in order of preference."""


_ADVICE = {
    "*.distcp": "join its shards: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER NEW.pt",
    "zero_to_fp32.py": "join the shards of DeepSpeed with its zero_to_fp32.py",
    "*-of-*": "for a checkpoint in parts, add its index file, such as model.safetensors.index.json",
    "snapshots/*": "this is a cache of the hub: name the folder in its snapshots/",
}
"""Pattern of a file in a folder that does not hold exactly one checkpoint -> the advice in the message."""


class UnreadableCheckpoint(ValueError):
    """A checkpoint cannot be read, or reading it could run code. The message says what to do."""


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """Return the files that hold a checkpoint's tensors, in a fixed order.

    Args:
        path: a checkpoint file, the index file of a checkpoint in parts, or a folder with one of these files.

    Raises:
        UnreadableCheckpoint: if there is no checkpoint, several checkpoints, or a damaged index file.
    """
    path = weights_file(path)
    if not path.is_file():
        raise UnreadableCheckpoint(f"{path} does not exist")
    if path.name.endswith(".index.json"):
        return _part_files(path)
    adapter = path.parent / ADAPTER_CONFIG
    return (path, adapter) if path.name.startswith("adapter_model.") and adapter.is_file() else (path,)


def weights_file(path: Path) -> Path:
    """Return the file or index file that a folder's checkpoint is read from; ``path`` itself if it is no folder."""
    return _file_in_folder(path) if path.is_dir() else path


def checkpoint_name(path: Path) -> str:
    """Return the name of a checkpoint's file without its suffix, or the name of a checkpoint's folder."""
    name = path.name.removesuffix(".index.json")
    fitting = [suffix for suffix in SUFFIXES if name.lower().endswith(suffix)]
    return name if path.is_dir() or not fitting else name[: -max(map(len, fitting))]


def files_digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the concatenated contents of some files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def config_file(path: Path) -> Path | None:
    """Return open_clip's or transformers' configuration in a checkpoint's folder or next to its file, if any."""
    folder = path if path.is_dir() else path.parent
    return next(filter(Path.is_file, (folder / "open_clip_config.json", folder / "config.json")), None)


def preferred_weights(names: Collection[str], where: str) -> str | None:
    """Return the first of :data:`FOLDER_WEIGHTS` that is among the names of a folder's files; ``None`` for none.

    Raises ``UnreadableCheckpoint``, which names the folder (``where``), if an adapter lies beside whole weights.
    """
    known = [name for name in FOLDER_WEIGHTS if name in names]
    if len({name.startswith("adapter_") for name in known}) > 1:
        raise UnreadableCheckpoint(f"{where} holds {known[0]} and {known[-1]}, a model and an adapter: name one file")
    return next(iter(known), None)


def _file_in_folder(folder: Path) -> Path:
    if known := preferred_weights([item.name for item in folder.iterdir() if item.is_file()], f"the folder {folder}"):
        return folder / known
    found = sorted(item for item in folder.iterdir() if item.name.lower().endswith(SUFFIXES))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} checkpoints ({', '.join(f.name for f in found[:3])}, ...)" if found else "no checkpoint"
    advice = (text for name, text in _ADVICE.items() if next(folder.glob(name), None))
    raise UnreadableCheckpoint(f"the folder {folder} holds {what}; {next(advice, 'name one file')}")


def _part_files(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnreadableCheckpoint(f"{index} is not the index file of a checkpoint in parts ({error!r})") from None
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise UnreadableCheckpoint(f"{index} lists the part {name!r}, which is not in the same folder")
    return tuple(index.parent / name for name in names)
