"""A tracking server to be hurt: ``tracking serve`` with its PostgreSQL and MLflow, on loopback, without passwords."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from orchestrator.tracking.database import find_postgres
from orchestrator.util.errors import UserError
from tests.helpers.ray_nodes import ROOT, Process, Service, free_port, kill
from tests.helpers.waiting import PATIENCE, until

READY_SECONDS = 180.0


def lacking(folder: Path) -> str:
    """Why no server can be had on this machine; empty where one can."""
    try:
        find_postgres(folder)
    except UserError as error:
        return str(error)
    return ""


class TrackingServer(Service):
    """The command, supervising both servers; a context manager that ends them.

    Args:
        folder: keeps the database; every folder above it may be entered by other users, as PostgreSQL is one as root.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """What ``MLFLOW_TRACKING_URI`` is set to."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "orchestrator", "tracking", "serve", "--folder", str(self.folder), "--no-auth"]
        with open(f"{self.folder}.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        if not until(lambda: self.answers or self._process is None or self._process.poll() is not None, READY_SECONDS):
            raise TimeoutError(f"the tracking server does not answer: {self.folder}.log")
        if not self.answers:
            raise RuntimeError(f"the tracking server does not start: {Path(f'{self.folder}.log').read_text()[-1000:]}")

    @property
    def answers(self) -> bool:
        """Whether MLflow's server answers, which it does without asking its database."""
        try:
            with urlopen(f"{self.uri}/health", timeout=2) as reply:
                return int(reply.status) == 200
        except (URLError, OSError):
            return False

    def child(self, word: str) -> Process | None:
        """The server that the command has started with this word in its command line."""
        if self._process is None:
            return None
        try:
            children = psutil.Process(self._process.pid).children()
            lines = {child.pid: " ".join(child.cmdline()) for child in children}
        except psutil.Error:
            return None
        return next((Process(pid, line) for pid, line in lines.items() if word in line), None)

    def tree(self, word: str) -> list[Process]:
        """That server with all it has started."""
        top = self.child(word)
        if top is None:
            return []
        try:
            below = psutil.Process(top.pid).children(recursive=True)
        except psutil.Error:
            below = []
        return [top, *(Process(process.pid, "") for process in below)]

    def close(self) -> None:
        """End both in good order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for process in (*self.tree("mlflow"), *self.tree("postgres")):
                kill(process.pid)
            self._process.kill()
            self._process.wait()
        self._process = None
