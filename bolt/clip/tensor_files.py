"""Writing tensors to a file: safetensors, with what the disk says told as the system's own errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous CPU tensors by name, readable for everybody as other files are.

    Raises ``OSError`` with the system's number where the disk is full or may not be written to, which safetensors
    reports in words only.
    """
    try:
        save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(0o644)
