"""Who holds something in a store - a grid, an attempt at an artifact - and whether that process still lives."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator.util.machine import has_ended, process_start_time

STALE_SECONDS = 120.0
"""A holder on another machine that was not renewed for so long counts as gone."""


@dataclass(frozen=True)
class LeaseOwner:
    """A process that holds something in a store.

    Attributes:
        host, machine: the machine's name, and what tells this start of it, and this container on it, from others.
        pid, started: the process.
        token: of this one holding.
        renewed: when it was renewed last, in seconds since the epoch by the holder's clock.
    """

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=lambda: _machine())
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=process_start_time)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewed: float = field(default_factory=time.time)

    def to_json(self) -> bytes:
        """As a file's content."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LeaseOwner | None:
        """What such a file says; ``None`` for one that does not say who."""
        try:
            found = json.loads(content)
            holder = cls(
                host=str(found["host"]),
                machine=str(found["machine"]),
                pid=int(found["pid"]),
                started=float(found["started"]),
                token=str(found["token"]),
                renewed=float(found["renewed"]),
            )
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return holder if holder.pid > 0 else None

    @property
    def summary(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether this process can see whether that one lives."""
        return self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has ended, as far as can be told from here and now: elsewhere, by its silence."""
        return has_ended(self.pid, self.started) if self.is_here else time.time() - self.renewed > STALE_SECONDS


def _machine() -> str:
    """This start of this machine, and the namespace that its process numbers are of."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on macOS
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
