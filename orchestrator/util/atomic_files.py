"""Write files in one step: a reader sees the old file or the whole new one. A failure becomes a message for people."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.util.errors import UserError


def nearest_existing(path: Path) -> Path:
    """Return the path if something is there, else the nearest folder above it.

    A new file at the path will be on the file system of this folder.
    """
    return next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())


def replacing(path: Path) -> contextlib.AbstractContextManager[Path]:
    """Replace a file as :func:`placing` does; if ``path`` is a symbolic link, replace the file that it leads to."""
    return placing(path.resolve())


@contextmanager
def placing(target: Path, put: Callable[[Path, Path], None] = os.replace) -> Iterator[Path]:
    """Yield a temporary file next to ``target``, which ``put`` moves to its place at the end of the block.

    If the block raises, ``target`` stays as it was and the temporary file is removed.
    Raises ``OSError`` if the file cannot be written.
    """
    temporary = target.with_name(f".{target.name[:200]}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        put(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(what: str, where: str, hint: str = "") -> Iterator[None]:
    """Raise ``UserError`` in place of an ``OSError`` of the block: a full disk, a folder that cannot be written to.

    ``what`` is written, such as ``the table``; ``where``: the option or the folder that the error names.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written: {error.strerror or error}", where=where, hint=hint) from None
