"""How far a builder is, told from whatever process it runs in to whoever shows it: a small file in the store."""

from __future__ import annotations

import contextlib
import threading
import time

from orchestrator.store.files import Files

TOLD_SECONDS = 2.0
"""Between two tellings, and before the first: what is quick says nothing."""

REMOTE_SECONDS = 10.0
"""The same where every telling is a request to a server, and between two looks at what was told there."""


class BuildProgress:
    """The note on one artifact that is being built. That it cannot be written or read ends nothing."""

    def __init__(self, files: Files, address: str) -> None:
        self._files, self._name = files, f"status/building/{address.replace('/', '.')}"
        self._told = time.monotonic()

    def tell(self, done: int, of: int) -> None:
        """Say that so much is done, of so much."""
        now = time.monotonic()
        if now - self._told < (TOLD_SECONDS if self._files.is_local else REMOTE_SECONDS):
            return
        self._told = now
        with contextlib.suppress(OSError):  # a full disk must not end a builder over its note
            if self._files.is_local:  # not flushed to the disk, which can take longer than what is told of
                path = self._files.local_path(self._name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{done:,} of {of:,}")
            else:
                self._files.write(self._name, f"{done:,} of {of:,}".encode())

    def end(self) -> None:
        """Take the note away, one that a killed builder left included."""
        with contextlib.suppress(OSError):
            self._files.remove(self._name)

    def read(self) -> str:
        """What was told last, or nothing."""
        try:
            return self._files.read(self._name).decode("utf-8", "replace")
        except OSError:
            return ""


class BuildProgressCache:
    """What builders told, for a picture that is drawn twice a second.

    Of a remote store it is what was told when one looked last; looking is done in a thread, so that a store that is
    slow, or away, never holds up who asks.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._told: dict[str, tuple[float, str]] = {}

    def read(self, address: str) -> str:
        """What the builder of an artifact told last, as far as known."""
        if self._files.is_local:
            return BuildProgress(self._files, address).read()
        looked, told = self._told.get(address, (time.monotonic() - REMOTE_SECONDS / 2, ""))
        if address not in self._told:
            self._told[address] = looked, told  # what is quick tells nothing: the first look is some time off
        elif time.monotonic() - looked > REMOTE_SECONDS:
            self._told[address] = time.monotonic(), told
            threading.Thread(target=self._look, args=(address,), name="how-far", daemon=True).start()
        return told

    def _look(self, address: str) -> None:
        told = BuildProgress(self._files, address).read()
        self._told[address] = time.monotonic(), told


def fraction_done(told: str) -> float | None:
    """The share that a note tells, 0 to 1; ``None`` for no note."""
    done, _, of = told.replace(",", "").partition(" of ")
    try:
        return int(done) / int(of)
    except (ValueError, ZeroDivisionError):
        return None
