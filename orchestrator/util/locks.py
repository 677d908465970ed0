"""A lock on a name that dies with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""What file systems that know no locks answer."""


class LockHeld(Exception):
    """Another process holds the lock; ``str`` of this is its process number."""


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock file at ``path``, where its file system knows locks.

    Raises :class:`LockHeld` at once where another process does, ``OSError`` where the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                stream.seek(0)
                raise LockHeld(stream.read().strip() or "?") from None
        with contextlib.suppress(OSError):  # of a disk that is full; the lock holds without its holder's number
            os.ftruncate(stream.fileno(), 0)
            os.write(stream.fileno(), str(os.getpid()).encode())
        yield
