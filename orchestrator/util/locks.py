"""File locks that the system releases when the process that holds them ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""The error numbers of file systems without locks."""


class LockHeld(Exception):
    """Another process holds the lock. The message is that process's id."""


@contextlib.contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock file at ``path`` during the block. On a file system without locks, the block runs unlocked.

    Yields the file descriptor: the lock lasts as long as a child process lives that inherits it.

    Raises :class:`LockHeld` immediately when another process holds it, unless ``wait`` is true, and ``OSError`` when
    the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                stream.seek(0)
                raise LockHeld(stream.read().strip() or "?") from None
        with contextlib.suppress(OSError):  # the disk is full; the lock works without the process id in it
            os.ftruncate(stream.fileno(), 0)
            os.write(stream.fileno(), str(os.getpid()).encode())
        yield stream.fileno()
