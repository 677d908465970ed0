"""PostgreSQL in a folder, reached through a socket in that folder and through no network.

Its one user has a generated password, which is kept in a file that libpq reads by itself (``PGPASSFILE``). PostgreSQL
does not run as root; there it runs as the user ``postgres``, who has to be able to enter the folder.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from orchestrator.tracking.supervised import Supervised
from orchestrator.util.errors import UserError, one_line

NAME = "mlflow"
"""Of the database, and of its user."""

DRIVER = "postgresql+psycopg2"
"""The scheme of an address, for SQLAlchemy: its own choice for ``postgresql`` differs between versions."""

SERVER_USER = "postgres"
"""Whom PostgreSQL runs as where this process is root's."""

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
_SOCKET = ".s.PGSQL.5432"
_LONGEST_SOCKET = 100
"""Bytes of a socket's path; Linux takes 107."""

_READY_SECONDS = 60.0
_TRIES = 4

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "synchronous_commit": "off",  # a power cut costs the last runs at most, which `sync` brings back
    "max_connections": "40",
}


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server's folder.

    Attributes:
        programs: folder of ``postgres`` and ``initdb``.
        folder: data, sockets and password lie in it.
        user: to run it as; ``None`` for whoever this process is.
    """

    programs: Path
    folder: Path
    user: str | None

    @property
    def data(self) -> Path:
        """The database cluster."""
        return self.folder / "postgres"

    @property
    def socket(self) -> Path:
        """The folder of its socket."""
        return self.folder / "socket"

    @property
    def password_file(self) -> Path:
        """In the form of ``~/.pgpass``."""
        return self.folder / "pgpass"

    @property
    def uri(self) -> str:
        """Without a password."""
        return f"{DRIVER}://{NAME}@/{NAME}?host={quote(str(self.socket))}"

    def make(self) -> None:
        """Make the cluster unless it is there. Raises ``UserError`` when PostgreSQL cannot.

        It is made under another name and moved into place, so that a kill meanwhile leaves nothing half-made.
        """
        if len(os.fsencode(self.socket / _SOCKET)) > _LONGEST_SOCKET:
            raise UserError(f"{self.folder} is too long a path for a socket", hint="give a shorter --folder")
        self.socket.mkdir(exist_ok=True)
        self._give(self.socket)
        self.socket.chmod(0o700)
        if self.data.is_dir():
            return
        part = self.folder / "postgres.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        self._give(part)
        password = secrets.token_urlsafe(24)
        once = self.folder / "password.part"
        write_secret(once, password)
        self._give(once)
        command = [str(self.programs / "initdb"), "-D", str(part), "-U", NAME, "-E", "UTF8", "--locale=C", "-N"]
        command += ["--auth=scram-sha-256", f"--pwfile={once}", "--no-instructions"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, user=self.user, cwd="/")
        finally:
            once.unlink()
        if done.returncode:
            shutil.rmtree(part, ignore_errors=True)
            raise UserError(f"PostgreSQL cannot make a database: {one_line(done.stderr)}", where=str(self.folder))
        write_secret(self.password_file, f"*:*:*:{NAME}:{password}\n")
        os.replace(part, self.data)

    def process(self) -> Supervised:
        """The server, not yet started."""
        self._forget_the_dead()
        command = [str(self.programs / "postgres"), "-D", str(self.data), "-k", str(self.socket)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        log = self.folder / "postgres.log"
        return Supervised("PostgreSQL", command, environment, log, self.user, signal.SIGINT)

    def wait_ready(self, server: Supervised) -> None:
        """Wait until it answers, with its database there. Raises ``UserError`` when it ends instead."""
        import psycopg2
        from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT

        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                connection = psycopg2.connect(
                    host=str(self.socket),
                    user=NAME,
                    dbname="postgres",
                    passfile=str(self.password_file),
                    connect_timeout=5,
                )
                break
            except psycopg2.OperationalError as error:
                if server.deaths >= _TRIES or time.monotonic() > deadline:
                    words = one_line(server.last_words()[-280:] or str(error))
                    raise UserError(f"PostgreSQL does not start: {words}", where=str(server.log)) from None
                server.look_after(lambda line: None)  # one that is still ending may be in its way
                time.sleep(0.1)
        with contextlib.closing(connection):
            connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (NAME,))
                if cursor.fetchone() is None:
                    cursor.execute(f"CREATE DATABASE {NAME}")

    def _give(self, path: Path) -> None:
        if self.user is not None:
            shutil.chown(path, self.user)

    def _forget_the_dead(self) -> None:
        """Remove the number of a server that was killed, when something else has that number by now."""
        import psutil

        note = self.data / "postmaster.pid"
        try:
            number = int(note.read_text().split()[0])
            if "postgres" not in psutil.Process(number).name():
                note.unlink()
        except (OSError, ValueError, IndexError, psutil.Error):
            return  # PostgreSQL itself sees to the rest


def find_postgres(folder: Path) -> Postgres:
    """PostgreSQL's programs on this machine, for a database in ``folder``.

    Raises ``UserError`` where there are none, and where they cannot be run from this user's account.
    """
    found = shutil.which("postgres")
    versions = [
        path for pattern in _PLACES for path in Path("/").glob(pattern.lstrip("/")) if (path / "initdb").is_file()
    ]
    if found is None and not versions:
        raise UserError(
            "PostgreSQL is not installed on this machine",
            hint="`sudo apt-get install postgresql` or `sudo dnf install postgresql-server`; or name one that runs "
            "elsewhere: --database postgresql://USER@HOST/NAME",
        )
    programs = Path(found).resolve().parent if found else max(versions, key=_version)
    if os.geteuid() != 0:
        return Postgres(programs, folder, None)
    try:
        account = pwd.getpwnam(SERVER_USER)
    except KeyError:
        raise UserError(
            "PostgreSQL does not run as root, and there is no user 'postgres' to run it as",
            hint="run this command as another user",
        ) from None
    for parent in (folder, *folder.parents):
        if parent.exists() and not parent.stat().st_mode & 0o001 and parent.stat().st_uid != account.pw_uid:
            raise UserError(
                f"PostgreSQL does not run as root, and the user 'postgres' may not enter {parent}",
                where="--folder",
                hint="give a folder that all may enter, e.g. --folder /var/lib/bolt-tracking, or run this command as "
                "another user",
            )
    return Postgres(programs, folder, SERVER_USER)


def _version(programs: Path) -> tuple[int, ...]:
    return tuple(int(digits) for digits in "".join(c if c.isdigit() else " " for c in str(programs)).split())


def with_driver(uri: str) -> str:
    """The address of a database as SQLAlchemy needs it; any other address as it is."""
    scheme, separator, rest = uri.partition("://")
    return f"{DRIVER}://{rest}" if separator and scheme in ("postgresql", "postgres") else uri


def check_database(uri: str) -> None:
    """Look whether a PostgreSQL that runs elsewhere lets us in.

    Raises ``UserError`` for an address that is none, one with a password in it, and a server that refuses.
    """
    where = "--database"
    parts = urlsplit(uri)
    if parts.scheme not in ("postgresql", "postgres", DRIVER):
        raise UserError(f"{uri} is no PostgreSQL database", where=where, hint="postgresql://USER@HOST:5432/NAME")
    if parts.password is not None:
        raise UserError(
            "a password in an address is shown by `ps` to every user of this machine",
            where=where,
            hint="leave it out, and write a line HOST:5432:NAME:USER:PASSWORD into ~/.pgpass (mode 0600) "
            "or into a file that PGPASSFILE names",
        )
    import psycopg2

    try:
        psycopg2.connect(uri.replace(f"{DRIVER}:", "postgresql:", 1), connect_timeout=10).close()
    except psycopg2.Error as error:
        raise UserError(f"the database cannot be used: {one_line(str(error))}", where=where) from None


def write_secret(path: Path, text: str) -> None:
    """Write a file whole that only its owner may read."""
    part = path.with_name(f"{path.name}.new")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    os.replace(part, path)
