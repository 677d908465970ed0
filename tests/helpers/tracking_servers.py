"""An ``mlflow server`` and a PostgreSQL of a test's own, on loopback, that can be killed, frozen and started again."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from packaging.version import Version

from tests.helpers.ray_nodes import Service, free_port
from tests.helpers.waiting import TIMEOUT, until, wait_for

ADMIN = "admin"
READY_SECONDS = 180.0
_POSTGRES_FOLDERS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin")


def postgres_programs() -> Path | None:
    """Return the folder of ``postgres`` and ``initdb``; ``None`` where PostgreSQL is not installed."""
    found = [path for pattern in _POSTGRES_FOLDERS for path in Path("/").glob(pattern) if (path / "initdb").is_file()]
    if on_path := shutil.which("postgres"):
        found.insert(0, Path(on_path).resolve().parent)
    return next((path for path in found if (path / "initdb").is_file()), None)


class Server:
    """A process in a session of its own, with every process that it starts."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        raise NotImplementedError

    def _launch(self, command: list[str], environment: dict[str, str], user: str | None = None) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True, user=user, group=user, extra_groups=None if user is None else [],
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """Return the process and its descendants."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def send(self, number: int) -> None:
        """Send a signal to the process and its descendants."""
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the server to end; kill it if it does not."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.send_signal(number)
                self._process.wait(TIMEOUT / 10)
            self.kill()

    def last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


class Postgres(Server):
    """PostgreSQL in a folder, reached with a password through a socket in that folder.

    PostgreSQL refuses to run as root. If the tests run as root, it runs as the user ``postgres``, who must be able to
    enter the folder.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__(folder / "postgres.log")
        self._programs, self._folder = programs, folder
        self._user = "postgres" if os.geteuid() == 0 else None
        self._data, self._socket = folder / "data", folder / "socket"
        self.password_file = folder / "pgpass"
        self.uri = f"postgresql+psycopg2://mlflow@/postgres?host={self._socket}"

    def start(self) -> None:
        """Create the database if there is none, start the server, and wait until it answers."""
        if not self._data.exists():
            self._create()
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self._socket)]
        self._launch([*command, "-c", "listen_addresses="], dict(os.environ), self._user)
        wait_for(lambda: self._answers() or not self.runs)
        assert self.runs, self.last_lines()

    def _create(self) -> None:
        password = secrets.token_hex(12)
        given = self._folder / "password"
        for path, text in ((given, password), (self.password_file, f"*:*:*:mlflow:{password}\n")):
            path.write_text(text)
            path.chmod(0o600)
        for folder in (self._data, self._socket):
            folder.mkdir(mode=0o700)
        if self._user is not None:
            for path in (given, self._data, self._socket):
                shutil.chown(path, self._user)
        initdb = [str(self._programs / "initdb"), "-D", str(self._data), "-U", "mlflow", "--auth=scram-sha-256", "-N"]
        subprocess.run([*initdb, f"--pwfile={given}"], check=True, capture_output=True, user=self._user, cwd="/")

    def _answers(self) -> bool:
        import psycopg2

        try:
            address = {"host": str(self._socket), "user": "mlflow", "dbname": "postgres"}
            psycopg2.connect(**address, passfile=str(self.password_file), connect_timeout=5).close()
        except psycopg2.OperationalError:
            return False
        return True


class MlflowServer(Server):
    """``mlflow server`` as docs/tracking-server.md starts it.

    Args:
        folder: for the log, the artifacts and, without ``postgres``, the database.
        postgres: the database; by default SQLite in the folder.
        auth: whether the server asks for user and password.
    """

    def __init__(self, folder: Path, postgres: Postgres | None = None, *, auth: bool = True) -> None:
        super().__init__(folder / "mlflow.log")
        self.folder, self.port, self.password = folder, free_port(), secrets.token_hex(12)
        self._postgres, self._auth = postgres, auth
        self.artifacts = folder / "artifacts"
        self.database = postgres.uri if postgres else f"sqlite:///{folder}/mlflow.db"
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        command += ["--artifacts-destination", str(self.artifacts)]
        # MLflow's own way to give an address that only its environment shows: it may hold a password.
        environment = {
            **os.environ,
            "MLFLOW_BACKEND_STORE_URI": self.database,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        environment.pop("MLFLOW_TRACKING_URI", None)
        if self._postgres is not None:
            environment["PGPASSFILE"] = str(self._postgres.password_file)
        if self._auth:
            command += ["--app-name", "basic-auth"]
            environment |= {
                "MLFLOW_AUTH_CONFIG_PATH": str(self._auth_file()),
                "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
                "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(24),
            }
        self._launch(command, environment)
        until(lambda: self.answers() or not self.runs, READY_SECONDS)
        assert self.answers(), self.last_lines()

    def _auth_file(self) -> Path:
        path = self.folder / "basic_auth.ini"
        older = Version(version("mlflow")) < Version("3.17")  # reads the password from this file alone
        path.write_text(
            f"[mlflow]\ndefault_permission = READ\nadmin_username = {ADMIN}\n"
            f"database_uri = sqlite:///{self.folder}/users.db\nauth_cache_ttl_seconds = 300\n"
            + (f"admin_password = {self.password}\n" if older else "")
        )
        return path

    def answers(self) -> bool:
        """Return whether the server answers; it does so without asking its database."""
        try:
            with urlopen(f"{self.uri}/health", timeout=2) as reply:
                return int(reply.status) == 200
        except (URLError, OSError):
            return False


RESTART_SECONDS = 1.0
"""Pause before a server that died is started again, as systemd's ``RestartSec`` would have it."""


class TrackingServer(Service):
    """The two servers, and a thread that restarts them as the system's supervisor would.

    Args:
        folder: for database and artifacts. Other users must be able to enter every folder above it, because another
            user runs PostgreSQL when this process is root's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = postgres_programs()
        self.postgres = Postgres(programs, folder) if programs is not None else None
        self.mlflow = MlflowServer(folder, self.postgres, auth=False)
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)

    @property
    def uri(self) -> str:
        """The value for ``MLFLOW_TRACKING_URI``."""
        return self.mlflow.uri

    def start(self) -> None:
        """Start both servers and wait until they answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for server in self._servers():
            server.start()
        self._keeper.start()

    def close(self) -> None:
        """End both servers in good order."""
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join()
        self.mlflow.stop()
        if self.postgres is not None:
            self.postgres.stop(signal.SIGINT)

    def _servers(self) -> list[Server]:
        return [self.mlflow] if self.postgres is None else [self.postgres, self.mlflow]

    def _keep(self) -> None:
        while not self._closing.wait(RESTART_SECONDS):
            for server in self._servers():
                with contextlib.suppress(AssertionError):  # it died while it started: the next round tries again
                    if not server.runs:
                        server.start()
