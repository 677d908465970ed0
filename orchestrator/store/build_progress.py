"""Build progress of artifacts, shared between processes through small files in the store."""

from __future__ import annotations

import contextlib
import time

from orchestrator.store.files import Files

WRITE_SECONDS = 5.0
"""Least time between two writes, and before the first: a quick build writes nothing."""


class BuildProgress:
    """The progress file of one artifact. Failures to read or write it are ignored."""

    def __init__(self, files: Files, address: str) -> None:
        self._files, self._name = files, f"status/building/{address.replace('/', '.')}"
        self._written = time.monotonic()

    def write(self, done: int, total: int) -> None:
        """Record that ``done`` of ``total`` steps are done, unless the last write was a moment ago."""
        now = time.monotonic()
        if now - self._written < WRITE_SECONDS:
            return
        self._written = now
        with contextlib.suppress(OSError):  # a full disk must not end a builder because of this file
            self._files.write(self._name, f"{done:,} of {total:,}".encode())

    def remove(self) -> None:
        """Remove the file, including one that a killed builder left."""
        with contextlib.suppress(OSError):
            self._files.remove(self._name)

    def read(self) -> str:
        """The progress that the builder reported last, such as ``1,500 of 3,000``; empty if there is none."""
        try:
            return self._files.read(self._name).decode("utf-8", "replace")
        except OSError:
            return ""


def fraction_done(progress: str) -> float | None:
    """The fraction, 0 to 1, that a progress text says; ``None`` for any other text."""
    done, _, total = progress.replace(",", "").partition(" of ")
    try:
        return int(done) / int(total)
    except (ValueError, ZeroDivisionError):
        return None
