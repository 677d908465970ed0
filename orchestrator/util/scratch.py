"""Temporary folders. If a process was killed before it removed its folders, the next process removes them."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = ".in-use"


class ScratchFolder:
    """A private folder, ``bolt-KIND-...``, removed by :meth:`remove` or at the end of a ``with`` block.

    The process that made the folder holds a lock on a file inside. A new ScratchFolder first removes the folders of the
    same kind whose processes have ended.

    Args:
        kind: purpose of the folder; part of its name.
        base: the parent folder; by default the system's temporary folder.
    """

    def __init__(self, kind: str, base: Path | None = None) -> None:
        base = base or Path(tempfile.gettempdir())
        remove_abandoned(kind, base)
        self.path = Path(tempfile.mkdtemp(prefix=f"bolt-{kind}-", dir=base))
        new = self.path / f"{_LOCK}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # on a file system without locks, folders of ended processes stay
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(new, self.path / _LOCK)  # after locking, so that no process sees _LOCK unlocked

    def remove(self) -> None:
        """Remove the folder. Removing it twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self.remove()


def remove_abandoned(kind: str, base: Path) -> None:
    """Remove the folders of a kind in ``base`` whose processes have ended."""
    for left in base.glob(f"bolt-{kind}-*/{_LOCK}"):
        with contextlib.suppress(OSError):  # the folder is in use, belongs to another user, or is being removed
            lock = os.open(left, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(lock)
