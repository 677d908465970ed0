"""Writing a file in one step: whoever reads it, or finds it after a crash, sees the old file or the whole new one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, which takes its place at the end of the block.

    If the block raises, ``path`` stays as it was and the temporary file is removed. A symbolic link stays one.
    Raises ``OSError`` if the file cannot be written.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name[:200]}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
