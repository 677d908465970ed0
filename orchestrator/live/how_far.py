"""How far a builder is, told from whatever process it runs in to whoever shows it: a small file in a local store."""

from __future__ import annotations

import contextlib
import time

from orchestrator.files import Files

TOLD_SECONDS = 2.0
"""Between two tellings, and before the first: what is quick says nothing."""


class HowFar:
    """The note on one artifact that is being built. Remote stores have none."""

    def __init__(self, files: Files, address: str) -> None:
        self._path = files.local_path(f"status/building/{address.replace('/', '.')}") if files.is_local else None
        self._told = time.monotonic()

    def tell(self, done: int, of: int) -> None:
        """Say that so much is done, of so much."""
        now = time.monotonic()
        if self._path is None or now - self._told < TOLD_SECONDS:
            return
        self._told = now
        with contextlib.suppress(OSError):  # a full disk must not end a builder over its note
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(f"{done:,} of {of:,}")

    def end(self) -> None:
        """Take the note away, one that a killed builder left included."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def read(self) -> str:
        """What was told last, or nothing."""
        if self._path is None:
            return ""
        try:
            return self._path.read_text()
        except OSError:
            return ""


def share_done(told: str) -> float | None:
    """The share that a note tells, 0 to 1; ``None`` for no note."""
    done, _, of = told.replace(",", "").partition(" of ")
    try:
        return int(done) / int(of)
    except (ValueError, ZeroDivisionError):
        return None
