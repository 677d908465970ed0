"""A lock on a name that dies with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Held(Exception):
    """Another process holds the lock; ``str`` of this is its process number."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file at ``path``. Raises :class:`Held` at once where another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            raise Held(stream.read().strip() or "?") from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
