"""Where a store's runs are tracked: in a SQLite database in the store, or where ``MLFLOW_TRACKING_URI`` says."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from orchestrator.store import Store
from orchestrator.util.errors import UserError

POSTGRES_DRIVER = "postgresql+psycopg2"
"""The URI scheme that names the driver. With plain ``postgresql``, the driver depends on SQLAlchemy's version."""

SQLITE = "sqlite:///"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
ARTIFACTS_VARIABLE = "BOLT_TRACKING_ARTIFACTS"
SERVER_VARIABLE = "BOLT_TRACKING_SERVER"


@dataclass(frozen=True)
class TrackingLocation:
    """An MLflow tracking store.

    Attributes:
        uri: ``sqlite:///...``, ``postgresql+psycopg2://...`` or ``http(s)://...``.
        artifacts: URL below which new experiments keep their artifacts; ``None`` if the server chooses it. For
            PostgreSQL it is the ``--artifacts-destination`` of the tracking server that uses the database.
        server: the address of the store's web interface, if known.
    """

    uri: str
    artifacts: str | None
    server: str | None = None

    @property
    def database(self) -> Path | None:
        """The file of a SQLite database; ``None`` for anything else."""
        return database_file(self.uri) if self.uri.startswith(SQLITE) else None


def database_uri(file: Path) -> str:
    """Return the URI of a SQLite database, with ``?`` and ``%`` in the file's name written as ``%3F`` and ``%25``.

    In a URI, a plain ``?`` ends the name, and a plain ``%41`` means ``A``.
    """
    return SQLITE + str(file).replace("%", "%25").replace("?", "%3F")


def database_file(uri: str) -> Path:
    """Return the file that SQLAlchemy opens for the URI of a SQLite database."""
    return Path(unquote(uri.removeprefix(SQLITE).partition("?")[0]))


def tracking_location(store: Store) -> TrackingLocation:
    """Return where the runs of a store are tracked.

    Raises ``UserError`` for a remote store without a tracking server, for a URI of an unknown scheme, for a database
    without a folder for artifacts, and for a local store with a ``?`` or a code such as ``%41`` in its path, which
    MLflow would read as another path.
    """
    if not (uri := os.environ.get(URI_VARIABLE)):
        if not store.files.is_local:
            hint = f"start a tracking server and set {URI_VARIABLE}=http://HOST:PORT (docs/tracking-server.md)"
            raise UserError(f"{store.url} is remote and cannot hold MLflow's database", hint=hint)
        file = store.files.local_path("mlflow/mlflow.db")
        uri = f"{SQLITE}{file}"
        # With ``%3F`` for ``?`` MLflow would open the file, but also make an empty folder with ``%3F`` in its name.
        if database_file(uri) != file:
            what = f"MLflow cannot open a database in {store.url}: ? and % have special meanings in its addresses"
            raise UserError(what, hint=f"rename the folder, or set {URI_VARIABLE} to a database elsewhere")
    if uri.startswith(("http://", "https://")):
        return TrackingLocation(uri, None, uri)
    if uri.startswith(SQLITE):
        return TrackingLocation(uri, (database_file(uri).absolute().parent / "artifacts").as_uri())
    scheme, separator, database = uri.partition("://")
    if not separator or scheme not in (POSTGRES_DRIVER, "postgresql", "postgres"):
        hint = "use http://HOST:PORT, postgresql://USER@HOST/NAME or sqlite:///FILE"
        shown = re.sub(r"//.*@", "//...@", uri)  # without user and password
        raise UserError(f"{shown} is not the URI of a tracking store", where=URI_VARIABLE, hint=hint)
    if not (artifacts := os.environ.get(ARTIFACTS_VARIABLE)):
        what = "the tracking address is a database, which cannot hold the artifacts of runs"
        hint = f"set {ARTIFACTS_VARIABLE} to the --artifacts-destination of the server that uses the database"
        raise UserError(what, where=URI_VARIABLE, hint=hint)
    url = artifacts.rstrip("/") if "://" in artifacts else Path(os.path.expanduser(artifacts)).absolute().as_uri()
    return TrackingLocation(f"{POSTGRES_DRIVER}://{database}", url, os.environ.get(SERVER_VARIABLE))
