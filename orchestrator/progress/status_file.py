"""The status file of a run, ``status/GRID.json`` in its store: its progress, for other shells and machines.

The run rewrites the file every few seconds, so an old file means that its driver was killed or its machine is gone.
On the driver's own machine its process is looked up as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from pydantic import TypeAdapter

from orchestrator.progress.snapshot import Snapshot
from orchestrator.store.files import Files
from orchestrator.util.machine import has_ended, process_start_time
from orchestrator.util.units import human_duration

FORMAT = 1

STALE_SECONDS = 30.0
"""The driver of a status that is older than this does not run: it was killed elsewhere, or suspended."""

REMOTE_SECONDS = 8.0
"""Least interval between two writes to a remote store, where each is a request."""

State = Literal["running", "silent", "died", "ended", "stopped", "failed"]

STATE_LABELS: dict[State, str] = {
    "running": "running",
    "silent": "silent",
    "died": "died",
    "ended": "ended",
    "stopped": "stopped",
    "failed": "ended by an error",
}


@dataclass(frozen=True)
class Status:
    """The content of a status file.

    Attributes:
        grid, title: what is run.
        state: as the run wrote it. Where that is ``running``, reading replaces it with ``died`` when the process is
            gone, and with ``silent`` when the file is old.
        command: the command line as it was typed.
        host, pid, started: the driver's machine, its process and when that started (seconds since the epoch).
        at: when the file was written, in seconds since the epoch.
        shot: the progress at that moment.
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
    def is_running(self) -> bool:
        """Whether the run is under way."""
        return self.state == "running"

    def headline(self, now: float) -> str:
        """One line: the state of the run, since when, and the command that continues it."""
        ago = human_duration(max(0.0, now - self.at))
        process = f"process {self.pid} on {self.host}"
        match self.state:
            case "running":
                return f"running: {process}"
            case "died":
                return f"died: {process} has ended, its last status is {ago} old; continue with: {self.command}"
            case "silent":
                return f"silent: no status from {process} for {ago}; it was suspended, or its machine is down"
            case "ended":
                return f"ended {ago} ago"
            case _:
                return f"{STATE_LABELS[self.state]} {ago} ago; continue with: {self.command}"


class StatusFile:
    """Writes a run's status into a store.

    Args:
        files: the store's files; ``None`` writes nothing.
        grid, title, command: see :class:`Status`.
    """

    def __init__(self, files: Files | None, grid: str = "", title: str = "", command: str = "") -> None:
        self._files, self._name = files, _file_name(grid)
        self._written = float("-inf")
        self._run = {
            "format": FORMAT,
            "grid": grid,
            "title": title,
            "command": command,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process_start_time(),
        }

    def write(self, state: State, snapshot: Snapshot) -> None:
        """Write the status. Errors are ignored: a full disk must not end a run over its status.

        Writes of ``running`` to a remote store that come too early are left out.
        """
        now = time.monotonic()
        if self._files is None:
            return
        if not self._files.is_local and state == "running" and now - self._written < REMOTE_SECONDS:
            return
        self._written = now
        body = {**self._run, "state": state, "at": time.time(), "line": snapshot.line, "shot": snapshot.to_dict()}
        text = json.dumps(body, indent=1)
        with contextlib.suppress(OSError):
            if not self._files.is_local:
                self._files.write(self._name, text.encode())
                return
            path = self._files.local_path(self._name)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")  # without the flush of Files.write, which is slow
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(path)


def _file_name(grid: str) -> str:
    return f"status/{grid}.json"


_STATUS = TypeAdapter(Status)


def read_status(files: Files, grid: str) -> Status | None:
    """The status of a grid's last run; ``None`` without a run, or for a file that cannot be read."""
    try:
        body = json.loads(files.read(_file_name(grid)).decode("utf-8", "replace"))
        if body["format"] != FORMAT or body["grid"] != grid:
            return None
        json.dumps(body, allow_nan=False)  # raises ValueError: Python reads NaN and Infinity, which no run writes
        status = _STATUS.validate_python({field.name: body[field.name] for field in fields(Status)})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return replace(status, state=_current_state(status)) if status.is_running else status


def _current_state(status: Status) -> State:
    """What has become of a run that wrote that it is running."""
    if status.host == socket.gethostname() and has_ended(status.pid, status.started):
        return "died"
    return "silent" if time.time() - status.at > STALE_SECONDS else "running"


def read_statuses(files: Files) -> Iterator[Status]:
    """The status of every grid's last run in a store, by name."""
    grids = [name.removesuffix(".json") for name in files.names("status") if name.endswith(".json") and name[0] != "."]
    for status in files.map(lambda grid: read_status(files, grid), grids):
        if status is not None:
            yield status
