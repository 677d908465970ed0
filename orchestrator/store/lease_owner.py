"""The process that owns a lease or an attempt in a store, and whether that process is still alive."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_type_hints

from orchestrator.util.machine import has_ended, process_start_time

STALE_SECONDS = 120.0
"""An owner on another machine that has not renewed its lease for so long counts as dead."""


@dataclass(frozen=True)
class LeaseOwner:
    """A process that owns something in a store.

    Attributes:
        host, machine: the machine's name, and a text that differs for each boot of it and each container on it.
        pid, started: the process.
        token: identifies this one lease.
        renewed: time of the last renewal, in seconds since the epoch by the owner's clock.
    """

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=lambda: _machine())
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=process_start_time)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewed: float = field(default_factory=time.time)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LeaseOwner | None:
        """The owner that a lease file names; ``None`` for a file that names none."""
        try:
            data = json.loads(content)
            owner = cls(**{name: kind(data[name]) for name, kind in get_type_hints(cls).items()})
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return owner if owner.pid > 0 else None

    @property
    def summary(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether this process can see if that one is alive: same machine, same boot, same container."""
        return self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has ended; for one on another machine, whether its lease is stale by this clock."""
        return has_ended(self.pid, self.started) if self.is_here else time.time() - self.renewed > STALE_SECONDS


def _machine() -> str:
    """This boot of this machine, and the namespace of its process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on macOS
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
