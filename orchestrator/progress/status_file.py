"""The status file of a run, ``status/GRID.json`` in its store: its progress, for other shells and machines.

The run rewrites the file every few seconds, so an old file means that its driver was killed or its machine is gone.
On the driver's own machine its process is looked up as well.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from orchestrator.progress.snapshot import Snapshot
from orchestrator.store.files import Files
from orchestrator.util.machine import has_ended, process_start_time
from orchestrator.util.units import human_duration

STALE_SECONDS = 30.0
"""The driver of a status that is older than this does not run: it was killed elsewhere, or suspended."""

REMOTE_SECONDS = 8.0
"""Least interval between two writes to a remote store, where each is a request."""

State = Literal["running", "silent", "died", "ended", "stopped", "failed"]


class Status(BaseModel, frozen=True, allow_inf_nan=False):
    """The content of a status file.

    Attributes:
        format: of the file; a file of another format is not read.
        state: as the run wrote it. Where that is ``running``, reading replaces it with ``died`` when the process is
            gone, and with ``silent`` when the file is old.
        command: the command line as it was typed.
        host, pid, started: the driver's machine, its process and when that started (seconds since the epoch).
        at: when the file was written, in seconds since the epoch.
        line, shot: the progress at that moment, in one line and in full.
    """

    format: Literal[1]
    grid: str
    title: str
    state: State
    command: str
    host: str
    pid: int
    started: float
    at: float
    line: str
    shot: Snapshot

    @property
    def label(self) -> str:
        """The state of the run in words: ``running``, ``ended by an error``."""
        return "ended by an error" if self.state == "failed" else self.state

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
                return f"{self.label} {ago} ago; continue with: {self.command}"


class StatusFile:
    """Writes a run's status into a store."""

    def __init__(self, files: Files, grid: str, title: str = "", command: str = "") -> None:
        self._files, self.grid, self.title, self.command = files, grid, title, command
        self._written = float("-inf")

    def write(self, state: State, snapshot: Snapshot) -> None:
        """Write the status. Errors are ignored: a full disk must not end a run over its status.

        Writes of ``running`` to a remote store that come too early are left out.
        """
        now = time.monotonic()
        if not self._files.is_local and state == "running" and now - self._written < REMOTE_SECONDS:
            return
        self._written = now
        status = Status(
            format=1,
            grid=self.grid,
            title=self.title,
            state=state,
            command=self.command,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=process_start_time(),
            at=time.time(),
            line=snapshot.line,
            shot=snapshot,
        )
        with contextlib.suppress(OSError):
            self._files.write(_file_name(self.grid), status.model_dump_json(indent=1).encode())


def set_values(files: Files, grid: str | os.PathLike[str], given: Sequence[str] | None) -> list[str]:
    """Return the values of ``--set`` that a grid's results are read with: the given ones, else those of its last run.

    So every command and call sees the cells that were run. ``grid``: its name, or the path of its file. An empty value
    stands for the grid as in its file.
    """
    if given is not None:
        return [value for value in given if value]
    status = read_status(files, Path(grid).stem)
    words = shlex.split(status.command) if status else []
    found = [(word, value) for word, value in pairwise([*words, ""]) if word.partition("=")[0] == "--set"]
    return [value if word == "--set" else word.removeprefix("--set=") for word, value in found]


def was_raced(files: Files, grid: str, planned: bool) -> bool:
    """Return whether the last run of a grid was a race. ``planned``: whether the grid's file asks for one."""
    status = read_status(files, grid)
    words = shlex.split(status.command) if status else []
    return "--race" in words or (planned and "--no-race" not in words)


def _file_name(grid: str) -> str:
    return f"status/{grid}.json"


def read_status(files: Files, grid: str) -> Status | None:
    """Return the status of a grid's last run; ``None`` without a run, or for a file that cannot be read."""
    try:
        status = Status.model_validate_json(files.read(_file_name(grid)))
    except (OSError, ValueError):
        return None
    if status.grid != grid:
        return None
    if status.state == "running" and status.host == socket.gethostname() and has_ended(status.pid, status.started):
        return status.model_copy(update={"state": "died"})
    if status.state == "running" and time.time() - status.at > STALE_SECONDS:
        return status.model_copy(update={"state": "silent"})
    return status
