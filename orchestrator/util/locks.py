"""File locks that the system releases when the process that holds them ends."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Error numbers with which a file system says that it has no locks."""


class LockHeld(Exception):
    """Another process holds the lock. The message is the id of that process."""


@contextlib.contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock file at ``path`` during the block. On a file system without locks, the block runs unlocked.

    Yields the file descriptor. A child process that inherits the descriptor keeps the lock for as long as it lives.

    If another process holds the lock, wait for it if ``wait`` is true, or else raise :class:`LockHeld`. Raises
    ``OSError`` if the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                stream.seek(0)
                raise LockHeld(stream.read().strip() or "?") from None
        with contextlib.suppress(OSError):  # the disk is full; the lock also works without the process id
            os.ftruncate(stream.fileno(), 0)
            os.write(stream.fileno(), str(os.getpid()).encode())
        yield stream.fileno()


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Lock the folder of a file, so that no other command changes the file while the block reads and rewrites it.

    If another process holds the lock, wait for it. On a file system without locks, the block runs unlocked.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = Path(os.path.realpath(path)).parent
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
