"""Writes files in one step: a reader sees the old file or the whole new file. Tells people why a write failed."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from orchestrator.util.errors import UserError


def nearest_existing(path: Path) -> Path:
    """Return the path if it exists, or else the nearest folder above that exists.

    A new file at the path will be on the file system of the returned path.
    """
    return next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())


def replacing(path: Path) -> AbstractContextManager[Path]:
    """Yield the path of a temporary file, which replaces ``path`` at the end of the block; see :func:`atomic_file`.

    If ``path`` is a symbolic link, the link stays, and the file that it leads to is replaced.
    """
    return atomic_file(path.resolve())


def replace_text(path: Path, text: str) -> None:
    """Write a text file as :func:`replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_file(target: Path, put: Callable[[Path, Path], None] = os.replace) -> Iterator[Path]:
    """Yield the path of a temporary file, which ``put`` renames to ``target`` at the end of the block.

    If the block raises an error, ``target`` stays unchanged and the temporary file is removed. Raises ``OSError`` if
    the file cannot be written.
    """
    temporary = target.with_name(f".{target.name[:200]}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        put(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(what: str, where: str, hint: str = "") -> Iterator[None]:
    """Turn an ``OSError`` of the block, such as a full disk or a read-only folder, into a ``UserError``.

    ``what``: what the block writes, such as ``the table``. ``where``: the option or folder for the message.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written: {error.strerror or error}", where=where, hint=hint) from None
