"""Temporary folders that do not outlive a killed process for long: the next one removes what it left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

_LOCK = ".in-use"


class ScratchFolder:
    """A private folder, ``bolt-KIND-...``, removed by :meth:`remove` or at the end of a ``with`` block.

    Its process holds a lock inside. Making another of the same kind removes those whose process was killed.

    Args:
        kind: what it is for.
        base: where; the system's temporary folder by default.
    """

    def __init__(self, kind: str, base: Path | None = None) -> None:
        base = base or Path(tempfile.gettempdir())
        _sweep(base, kind)
        self.path = Path(tempfile.mkdtemp(prefix=f"bolt-{kind}-", dir=base))
        new = self.path / f"{_LOCK}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: nobody will sweep there either
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(new, self.path / _LOCK)  # under this name it is held from the first moment

    def remove(self) -> None:
        """Remove the folder. Removing it twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _sweep(base: Path, kind: str) -> None:
    for left in base.glob(f"bolt-{kind}-*/{_LOCK}"):
        with contextlib.suppress(OSError):  # somebody else's, or being removed by somebody else
            lock = os.open(left, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(lock)
