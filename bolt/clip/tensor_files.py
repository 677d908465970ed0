"""Writes safetensors files, and reports a full or read-only disk as ``OSError``."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors, on any device and in any memory layout, to a safetensors file with mode 0644.

    Raises ``OSError`` with the system's ``errno`` if writing fails. safetensors itself only mentions that number in its
    message.
    """
    try:
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(on_cpu, path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(0o644)
