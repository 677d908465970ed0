"""Where runs are tracked: in the store's own database, or where the environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.tracking.database import DRIVER, with_driver
from orchestrator.tracking.server import ARTIFACTS_VARIABLE, SERVER_VARIABLE
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.store import Store


@dataclass(frozen=True)
class TrackingLocation:
    """A tracking store.

    Attributes:
        uri: ``sqlite:///...``, ``postgresql+psycopg2://...`` or ``http(s)://...``.
        artifacts: folder or URL of its artifacts; ``None`` where its server decides.
        server: the address of its web interface, if one is known to be served.
    """

    uri: str
    artifacts: str | None
    server: str | None = None

    @property
    def database(self) -> Path | None:
        """The file of a SQLite database."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:///") else None


def tracking_location(store: Store) -> TrackingLocation:
    """Where the runs of a store are tracked.

    Raises ``UserError`` for a remote store without a tracking server, and for an address that cannot be one.
    """
    where = "MLFLOW_TRACKING_URI"
    if uri := os.environ.get(where):
        uri = with_driver(uri)
        if uri.startswith(("http://", "https://")):
            return TrackingLocation(uri, None, uri)
        if uri.startswith("sqlite:///"):
            return TrackingLocation(uri, str(Path(uri.removeprefix("sqlite:///")).parent / "artifacts"))
        if not uri.startswith(f"{DRIVER}://"):
            raise UserError(
                f"{uri} is no tracking store", where=where, hint="http://HOST:PORT, postgresql://... or sqlite:///FILE"
            )
        artifacts = os.environ.get(ARTIFACTS_VARIABLE)
        if not artifacts:
            raise UserError(
                "names a database, but not where the artifacts of its runs go",
                where=where,
                hint='eval "$(python -m orchestrator tracking env)" says both, beside a server started by '
                f"`tracking serve`; or set {ARTIFACTS_VARIABLE} to the server's --artifacts",
            )
        return TrackingLocation(uri, artifacts, os.environ.get(SERVER_VARIABLE))
    if not store.files.is_local:
        raise UserError(
            f"{store.url} is remote and has no place for MLflow's database",
            hint="start a tracking server, `python -m orchestrator tracking serve`, and say where it is: on that "
            'machine eval "$(python -m orchestrator tracking env)", elsewhere MLFLOW_TRACKING_URI=http://HOST:PORT '
            "(docs/tracking-server.md)",
        )
    folder = store.files.local_path("mlflow")
    return TrackingLocation(f"sqlite:///{folder}/mlflow.db", str(folder / "artifacts"))
