"""What is wrong with a tracking store, from the errors of MLflow, SQLAlchemy, requests and the databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.util.errors import one_line


class NoAnswer(Exception):
    """A store that has not answered for a long time, without refusing either: a frozen process, a cut line."""


@dataclass(frozen=True)
class TrackingProblem:
    """What is wrong.

    Attributes:
        message: for people, without a full stop.
        kind: ``away`` passes when the store comes back; ``refused`` stays until somebody mends it; ``other`` is about
            one run, or not understood.
    """

    message: str
    kind: Literal["away", "refused", "other"]


def classify_tracking_error(error: BaseException) -> TrackingProblem:
    """Tell a store that is away from one that refuses."""
    said = " ".join(str(part) for part in _chain(error))
    names = {kind.__name__ for part in _chain(error) for kind in type(part).__mro__}
    code = str(getattr(error, "error_code", ""))
    if "file is not a database" in said or "disk image is malformed" in said:
        words = "the database of runs is damaged; `python -m orchestrator sync GRID --rebuild` makes it anew"
        return TrackingProblem(words, "refused")
    if "database is locked" in said:
        return TrackingProblem("the database of runs is held by another process", "away")
    if "attempt to write a readonly database" in said or "unable to open database file" in said:
        return TrackingProblem("the database of runs may not be written to", "refused")
    if code == "UNAUTHENTICATED" or "error code 401" in said:
        words = "the tracking server does not take MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        return TrackingProblem(words, "refused")
    if "Invalid Host header" in said:
        words = "the tracking server does not know itself by the name in MLFLOW_TRACKING_URI (`tracking serve --name`)"
        return TrackingProblem(words, "refused")
    if code == "PERMISSION_DENIED" or "error code 403" in said:
        return TrackingProblem("MLFLOW_TRACKING_USERNAME may not write to this grid's experiment", "refused")
    if "password authentication failed" in said or "no password supplied" in said:
        return TrackingProblem("the tracking database does not take the password; PGPASSFILE names the file", "refused")
    if names & {"ConnectionError", "Timeout", "TimeoutError", "OperationalError", "InterfaceError", "NoAnswer"}:
        return TrackingProblem(f"the tracking store cannot be reached: {_short(error)}", "away")
    if code in ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED") or "error code 5" in said:
        return TrackingProblem(f"the tracking store cannot be reached: {_short(error)}", "away")
    return TrackingProblem(one_line(error), "other")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _short(error: BaseException) -> str:
    """The last of the causes says it in the fewest words."""
    parts = [part for part in _chain(error) if str(part)]
    inner = [part for part in parts if not isinstance(part, (KeyError, sqlite3.Warning))]
    return one_line(min(inner or parts, key=lambda part: len(str(part))), limit=160) if parts else one_line(error)
