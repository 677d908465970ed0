"""The file in which a run says how far it is, for other shells and machines: ``status/GRID.json`` in its store.

It is renewed every few seconds, so its age tells a driver that was killed, or whose machine went away, from one at
work; on the same machine the process is asked for, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from orchestrator.progress.snapshot import Snapshot
from orchestrator.store.files import Files
from orchestrator.util.machine import has_ended, process_start_time
from orchestrator.util.units import human_duration

FORMAT = 1

STALE_SECONDS = 30.0
"""A status that was not renewed for so long is of a driver that does not run: killed elsewhere, or suspended."""

REMOTE_SECONDS = 8.0
"""Between two renewals where each is a request to a server."""

State = Literal["running", "silent", "died", "ended", "stopped", "failed"]

WORDS: dict[State, str] = {
    "running": "running",
    "silent": "silent",
    "died": "died",
    "ended": "ended",
    "stopped": "stopped",
    "failed": "ended by an error",
}


@dataclass(frozen=True)
class Status:
    """What a run said last.

    Attributes:
        grid, title: what is run.
        state: what it says of itself, or, where it says that it runs, what became of it: ``died`` when its process
            is gone, ``silent`` when it has not said anything for long.
        command: the command line as it was typed.
        host, pid, started: which process.
        at: when it was said, in seconds since the epoch.
        shot: how far it was.
    """

    grid: str
    title: str
    state: State
    command: str
    host: str
    pid: int
    started: float
    at: float
    shot: Snapshot

    @property
    def at_work(self) -> bool:
        """Whether there is anything to watch."""
        return self.state == "running"

    def headline(self, now: float) -> str:
        """Who runs it and whether they still do."""
        ago = human_duration(max(0.0, now - self.at))
        who = f"process {self.pid} on {self.host}"
        match self.state:
            case "running":
                return f"running: {who}"
            case "died":
                return f"died: {who} is gone, it last said so much {ago} ago; go on with: {self.command}"
            case "silent":
                return f"silent: {who} has not said anything for {ago}; it was suspended, or its machine is gone"
            case "ended":
                return f"ended {ago} ago"
            case _:
                return f"{WORDS[self.state]} {ago} ago; go on with: {self.command}"


@dataclass(frozen=True)
class StoredStatus:
    """A status in a remote store; it is read and written as a path is."""

    files: Files
    name: str

    def read_text(self) -> str:
        """What it says. Raises ``OSError``."""
        return self.files.read(self.name).decode("utf-8", "replace")

    def write_text(self, text: str) -> None:
        """Have it say something else. Raises ``OSError``."""
        self.files.write(self.name, text.encode())


Place = Path | StoredStatus


def status_place(files: Files, grid: str) -> Place:
    """Where a run in a store says how far it is."""
    name = f"status/{grid}.json"
    return files.local_path(name) if files.is_local else StoredStatus(files, name)


class StatusFile:
    """Writes a run's status.

    Args:
        path: where to; ``None`` writes nothing.
        grid, title, command: see :class:`Status`.
    """

    def __init__(self, path: Place | None, grid: str = "", title: str = "", command: str = "") -> None:
        self._path = path
        self._written = float("-inf")
        self._who = {
            "format": FORMAT,
            "grid": grid,
            "title": title,
            "command": command,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process_start_time(),
        }

    def write(self, state: State, shot: Snapshot) -> None:
        """Say how far it is. A disk that is full or gone does not end a run over its status."""
        if self._path is None:
            return
        now, pace = time.monotonic(), REMOTE_SECONDS if isinstance(self._path, StoredStatus) else 0.0
        if state == "running" and now - self._written < pace:
            return
        self._written = now
        body = {**self._who, "state": state, "at": time.time(), "line": shot.line, "shot": shot.to_dict()}
        if isinstance(self._path, StoredStatus):
            with contextlib.suppress(OSError):
                self._path.write_text(json.dumps(body, indent=1))
            return
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(body, indent=1))
            temporary.replace(self._path)


_STATUS = TypeAdapter(Status)


def read_status(path: Place | None) -> Status | None:
    """What the last run of a grid said; ``None`` when there was none, or nothing that can be read."""
    if path is None:
        return None
    try:
        body = json.loads(path.read_text())
        if body["format"] != FORMAT:
            return None
        json.dumps(body, allow_nan=False)  # raises ValueError: Python reads NaN and Infinity, which no run writes
        said = _STATUS.validate_python({field.name: body[field.name] for field in fields(Status)})
        if said.state == "running":
            return replace(said, state=_became(said.host, said.pid, said.started, said.at))
        return said
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _became(host: str, pid: int, started: float, at: float) -> State:
    if host == socket.gethostname() and has_ended(pid, started):
        return "died"
    return "silent" if time.time() - at > STALE_SECONDS else "running"


def read_statuses(files: Files) -> Iterator[Status]:
    """Every grid's last run in a store, by name."""
    grids = [name.removesuffix(".json") for name in files.names("status") if name.endswith(".json") and name[0] != "."]
    for status in files.map(lambda grid: read_status(status_place(files, grid)), grids):
        if status is not None:
            yield status
