"""The status file of a run, ``status/GRID.json`` in the store. It shows the progress to other shells and machines.

The run rewrites the file every few seconds. An old file therefore means that the run's driver was killed or that its
machine is gone. A command on the driver's machine also finds out whether the driver's process has ended.
"""

import contextlib
import filecmp
import os
import shlex
import socket
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel

from orchestrator.catalog.location import grids_folder
from orchestrator.progress.snapshot import Snapshot
from orchestrator.store.files import Files
from orchestrator.util.machine import has_ended
from orchestrator.util.units import human_duration

STALE_SECONDS = 30.0
"""Age beyond which the status of a running grid means that its driver was killed or suspended."""

REMOTE_SECONDS = 8.0
"""Least interval between two writes to a remote store, where each write is a request."""

State = Literal["running", "silent", "died", "ended", "stopped", "failed"]


class Status(BaseModel, frozen=True, allow_inf_nan=False):
    """The content of a status file.

    Attributes:
        format: the version of the file format; a file of another version is not read.
        state: the state that the run wrote. :func:`read_status` replaces ``running`` with ``died`` when the process is
            gone, and with ``silent`` when the file is old.
        command: the command line that the user typed.
        host, pid: the driver's machine and process.
        started: when the driver's process started, in seconds since the epoch.
        at: when the file was written, in seconds since the epoch.
        file: the path of the grid's file. Earlier versions wrote none.
        line, shot: the progress at the time ``at``, in one line and in full.
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
    file: str = ""

    @property
    def label(self) -> str:
        """The state of the run in words: ``running``, ``ended by an error``."""
        return "ended by an error" if self.state == "failed" else self.state

    def headline(self, now: float) -> str:
        """Return one line: the run's state, how old the status is, and the command that continues a stopped run."""
        ago = human_duration(max(0.0, now - self.at))
        process = f"process {self.pid} on {self.host}"
        match self.state:
            case "running":
                return f"running: {process}"
            case "died":
                return f"died: {process} has ended, its last status is {ago} old; continue with: {self.command}"
            case "silent":
                return f"silent: no status from {process} for {ago}; the process was suspended, or the machine is down"
            case "ended":
                return f"ended {ago} ago"
            case _:
                return f"{self.label} {ago} ago; continue with: {self.command}"


class StatusFile:
    """Writes the status of a grid's run into a store. ``grid`` is the grid's name or the path of its file."""

    def __init__(self, files: Files, grid: str, title: str = "", command: str = "") -> None:
        self._files, self.grid, self.title, self.command = files, Path(grid).stem, title, command
        self._grid_file = str(_grid_file(grid))
        self._written = float("-inf")

    def write(self, state: State, snapshot: Snapshot) -> None:
        """Write the status. Errors are ignored, because a run must not end if the disk is full.

        The state ``running`` is not written to a remote store within ``REMOTE_SECONDS`` of the last write.
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
            started=psutil.Process().create_time(),
            at=time.time(),
            line=snapshot.line,
            shot=snapshot,
            file=self._grid_file,
        )
        with contextlib.suppress(OSError):
            self._files.write(_status_name(self.grid), status.model_dump_json(indent=1).encode())


def set_values(last: Status | None, given: Sequence[str] | None) -> list[str]:
    """Return the values of ``--set`` for reading a grid's results: the ``given`` values, or else those of the last run.

    So every command sees the cells that were run. If ``given`` has only an empty value, there are no overrides.
    """
    if given is not None:
        return [value for value in given if value]
    found = [(word, value) for word, value in pairwise([*_words(last), ""]) if word.partition("=")[0] == "--set"]
    return [value if word == "--set" else word.removeprefix("--set=") for word, value in found]


def was_raced(last: Status | None, planned: bool) -> bool:
    """Return whether the last run of a grid was a race. ``planned``: whether the grid's file asks for a race."""
    words = _words(last)
    return "--race" in words or (planned and "--no-race" not in words)


def _words(last: Status | None) -> list[str]:
    """Return the arguments of the command that ran a grid last; an empty list if the grid has not run."""
    return shlex.split(last.command) if last else []


def _status_name(grid: str) -> str:
    return f"status/{grid}.json"


def _grid_file(grid: str | os.PathLike[str]) -> Path:
    path = Path(grid)
    return (path if path.suffix else grids_folder() / f"{path}.yaml").absolute()


def namesake(status: Status | None, grid: str | os.PathLike[str]) -> str:
    """Return the path of the grid file that was run last if its content differs from the file of ``grid``, else ``""``.

    ``status``: the status of the last run under the grid's name. The result is ``""`` also if one of the files is gone.
    """
    with contextlib.suppress(OSError):
        if status is not None and not filecmp.cmp(status.file, _grid_file(grid), shallow=False):
            return status.file
    return ""


def last_run(files: Files, grid: str | os.PathLike[str]) -> Status | None:
    """Return the status of a grid's last run; ``None`` without a run, or if another grid of this name ran later.

    ``grid`` is the grid's name or the path of its file.
    """
    status = read_status(files, Path(grid).stem)
    return None if namesake(status, grid) else status


def read_status(files: Files, grid: str) -> Status | None:
    """Return the status of the last run under a grid's name; ``None`` without a run, or if the file cannot be read."""
    try:
        status = Status.model_validate_json(files.read(_status_name(grid)))
    except (OSError, ValueError):
        return None
    if status.grid != grid:
        return None
    if status.state == "running" and status.host == socket.gethostname() and has_ended(status.pid, status.started):
        return status.model_copy(update={"state": "died"})
    if status.state == "running" and time.time() - status.at > STALE_SECONDS:
        return status.model_copy(update={"state": "silent"})
    return status
