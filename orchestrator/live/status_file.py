"""The file in which a run says how far it is, for other shells: ``status/GRID.json`` in a local store.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.live.eta import in_words
from orchestrator.live.snapshot import Snapshot
from orchestrator.machine import died, own_start

FORMAT = 1

STALE_SECONDS = 30.0
"""A status that was not renewed for so long is of a driver that does not run: killed elsewhere, or suspended."""

State = Literal["running", "silent", "died", "ended", "stopped", "failed"]

WORDS: dict[State, str] = {
    "running": "running",
    "silent": "silent",
    "died": "died",
    "ended": "ended",
    "stopped": "stopped by Ctrl-C",
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
        ago = in_words(max(0.0, now - self.at))
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


class StatusFile:
    """Writes a run's status.

    Args:
        path: where to; ``None`` writes nothing.
        grid, title, command: see :class:`Status`.
    """

    def __init__(self, path: Path | None, grid: str = "", title: str = "", command: str = "") -> None:
        self._path = path
        self._who = {
            "format": FORMAT,
            "grid": grid,
            "title": title,
            "command": command,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": own_start(),
        }

    def write(self, state: State, shot: Snapshot) -> None:
        """Say how far it is. A disk that is full or gone does not end a run over its status."""
        if self._path is None:
            return
        body = {**self._who, "state": state, "at": time.time(), "line": shot.line, "shot": shot.to_dict()}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(body, indent=1))
            temporary.replace(self._path)


def read_status(path: Path | None) -> Status | None:
    """What the last run of a grid said; ``None`` when there was none, or nothing that can be read."""
    if path is None:
        return None
    try:
        body = json.loads(path.read_text())
        if body["format"] != FORMAT:
            return None
        said = {name: body[name] for name in ("grid", "title", "command", "host", "pid", "started", "at")}
        state: State = body["state"]
        if state not in WORDS:
            return None
        if state == "running":
            state = _became(body["host"], int(body["pid"]), float(body["started"]), float(body["at"]))
        return Status(state=state, shot=Snapshot.from_dict(body["shot"]), **said)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _became(host: str, pid: int, started: float, at: float) -> State:
    if host == socket.gethostname() and died(pid, started):
        return "died"
    return "silent" if time.time() - at > STALE_SECONDS else "running"


def read_statuses(folder: Path) -> Iterator[Status]:
    """Every grid's last run in a store, by name."""
    for path in sorted(folder.glob("*.json")):
        if (status := read_status(path)) is not None:
            yield status
