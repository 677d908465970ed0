"""A Ray cluster of several nodes on this machine, whose nodes tests can freeze and kill.

The nodes are real (``ray start``). Each has one CPU, except the head, which has none. They listen on the loopback
interface only and require a token. All processes of a node, workers included, are in one session of processes. So a
node can be found, frozen and killed as a whole, and other instances of Ray are not touched.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.helpers.waiting import until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0
OBJECT_STORE_BYTES = 100_000_000
HEALTH = {"RAY_health_check_period_ms": "200", "RAY_health_check_failure_threshold": "10"}
"""A node is given up when ten checks in a row have failed. The next check follows 0.2 s after the last one's end."""
_LAUNCH = (
    "import sys; from ray._private import services; "
    # Ray would take the address of a network card instead of the loopback interface, and listen on all interfaces.
    "services.get_node_ip_address = lambda address=None: '127.0.0.1'; "
    "from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
)


@dataclass(frozen=True)
class Process:
    """A process in ``/proc``.

    Attributes:
        title: its command line. Ray's workers write there what they run, for example ``ray::Worker.train()``.
    """

    pid: int
    title: str

    @property
    def alive(self) -> bool:
        """Whether the process exists and is no zombie."""
        return alive(self.pid)


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def session_processes(leader: int) -> list[Process]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader and alive(int(name)):
                title = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found.append(Process(int(name), title.strip()))
    return found


def kill_session(leader: int) -> None:
    """Kill all processes of a session (``kill -9``), including those that start meanwhile."""
    until(lambda: not _kill_processes(session_processes(leader)), 20)


def _kill_processes(processes: list[Process]) -> int:
    for process in processes:
        kill(process.pid)
    return len(processes)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def free_port() -> int:
    """Return a port of the loopback interface on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Node:
    """One node: a session of processes with a ``raylet`` and, on the head, the control service."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        self._begun = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, "start", *arguments],
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def processes(self, of: str = "") -> list[Process]:
        """Return the node's processes whose title contains ``of``."""
        return [process for process in session_processes(self.process.pid) if of in process.title]

    @property
    def raylet(self) -> Process | None:
        """The node's main process; ``None`` when that has ended."""
        return next((p for p in self.processes() if p.title.split(" ")[0].endswith("/raylet")), None)

    @property
    def started(self) -> bool:
        """Whether the node has joined the cluster."""
        with open(self.log, "rb") as stream:
            stream.seek(self._begun)
            return b"Ray runtime started" in stream.read()

    @property
    def is_up(self) -> bool:
        """Whether the node is starting or running."""
        return self.process.poll() is None and (not self.started or self.raylet is not None)

    def signal(self, number: int) -> int:
        """Send a signal to all processes of the node; return how many there were."""
        processes = self.processes()
        for process in processes:
            kill(process.pid, number)
        return len(processes)

    def kill(self) -> None:
        """Kill all processes of the node at once, as a power failure does."""
        kill_session(self.process.pid)
        self.process.wait()


class Service(ABC):
    """A service that a ``with`` block starts and closes. The block also closes a service whose start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start the service and wait until it can be used."""

    @abstractmethod
    def close(self) -> None:
        """End the service and all its processes."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class MultiNodeCluster(Service):
    """A head and some worker nodes; a context manager that kills all of them at its end.

    Args:
        folder: for Ray's files; its path must be short, because the folder contains sockets.
        workers: how many worker nodes.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder, self._worker_count = folder, workers
        self.head: Node | None = None
        self.nodes: list[Node] = []
        self.started = 0
        self._port = 0
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **HEALTH,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # see tests/conftest.py
            "RAY_prestart_worker_first_driver": "0",  # what starts ahead lacks the job's environment
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }

    @property
    def address(self) -> str:
        """The address at which drivers join."""
        return f"127.0.0.1:{self._port}"

    @property
    def driver_environment(self) -> dict[str, str]:
        """The environment that a driver needs to join: the token, and a setting that keeps the loopback address."""
        return {**self._environment, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

    def start(self) -> None:
        self._port = free_port()
        ports = (f"--port={self._port}", f"--ray-client-server-port={free_port()}")
        self.head = self._node("head", "--head", *ports, "--num-cpus=0", "--include-dashboard=false")
        if not until(lambda: self._answers() or not self.head_is_up, START_SECONDS) or not self.head_is_up:
            raise RuntimeError(f"Ray's head does not start: {self.head.log}")
        self.nodes = [self._worker() for _ in range(self._worker_count)]
        self.wait()

    @property
    def head_is_up(self) -> bool:
        return self.head is not None and self.head.is_up

    def wait(self) -> None:
        """Wait until all nodes have started. Raises ``RuntimeError`` if one fails."""
        nodes = [node for node in (self.head, *self.nodes) if node is not None]
        until(lambda: all(node.started or not node.is_up for node in nodes), START_SECONDS, 0.1)
        for node in nodes:
            if not (node.started and node.is_up):
                raise RuntimeError(f"Ray's {node.name} does not start: {node.log.read_text()[-2000:]}")

    def restart_dead_nodes(self) -> None:
        """Start dead worker nodes again; if the head is dead, start a new cluster."""
        if not self.head_is_up:
            self.close()
            self.start()
            return
        for position, node in enumerate(self.nodes):
            if not node.is_up:
                node.kill()
                self.nodes[position] = self._worker()

    def add_node(self) -> None:
        """Start one more worker node."""
        self.nodes.append(self._worker())

    def find_workers(self, titles: tuple[str, ...]) -> list[Process]:
        """Return the processes of worker nodes whose title begins with one of ``titles``."""
        return [process for node in self.nodes for process in node.processes() if process.title.startswith(titles)]

    def close(self) -> None:
        """Kill every node. Closing twice is harmless."""
        for node in (*self.nodes, self.head):
            if node is not None:
                node.signal(signal.SIGCONT)
                node.kill()
        self.head, self.nodes = None, []

    def _worker(self) -> Node:
        return self._node(f"node{self.started}", f"--address={self.address}", "--num-cpus=1")

    def _node(self, name: str, *arguments: str) -> Node:
        """Start a node in a folder of its own. In one folder, two nodes that start at once may take the same socket."""
        self.started += 1
        common = (
            f"--temp-dir={self.folder}/r{self.started}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--dashboard-agent-listen-port=0",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            "--block",
        )
        return Node(name, [*arguments, *common], self._environment, self.folder / f"{name}.log")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def short_cluster(logs: Path, workers: int = 2) -> Iterator[MultiNodeCluster]:
    """Start a cluster in a folder with a short path. At the end, its files are copied into the folder ``logs``.

    pytest's own folders have paths that are too long, but pytest keeps them.
    """
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp", ignore_cleanup_errors=True) as short:
        try:
            with MultiNodeCluster(Path(short), workers) as started:
                yield started
        finally:
            skip = shutil.ignore_patterns("sockets", "token")
            with contextlib.suppress(shutil.Error):  # a file vanished meanwhile, or is a pipe
                shutil.copytree(short, logs, ignore=skip, symlinks=True, dirs_exist_ok=True)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise ``SystemExit`` during the block, so that ``with`` blocks end what this process has started."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
