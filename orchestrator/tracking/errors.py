"""Classifies errors of MLflow, SQLAlchemy, requests and databases, and says in one line what is wrong."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.util.errors import one_line


class NoAnswer(TimeoutError):
    """The tracking store has neither answered nor refused for a long time, as a frozen server does."""


@dataclass(frozen=True)
class TrackingProblem:
    """What is wrong with a tracking store.

    Attributes:
        message: one line for people.
        kind: ``unreachable`` if waiting may help, ``refused`` if a person has to act, ``other`` if the error is about
            a single run or is not known.
    """

    message: str
    kind: Literal["unreachable", "refused", "other"]


_REFUSALS = {
    ("file is not a database", "disk image is malformed", "no such table"): (
        "the database of runs is damaged; `python -m orchestrator sync GRID --rebuild` makes a new one"
    ),
    ("out-of-date database schema", "Can't locate revision"): (
        "the database of runs is from another version of MLflow: `python -m orchestrator sync GRID --rebuild` makes a "
        "new database, or (after a backup) `mlflow db upgrade URI` updates an older database"
    ),
    ("attempt to write a readonly database", "unable to open database file"): (
        "this process is not allowed to write to the database of runs"
    ),
    ("error code 401", "UNAUTHENTICATED"): (
        "the tracking server does not accept MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    ),
    ("No module named 'mlflow'",): "MLflow is not installed; `pip install 'bolt-orchestrator[engine]'` adds it",
    ("Invalid Host header",): (
        "the tracking server does not accept the host name in MLFLOW_TRACKING_URI; `mlflow server --allowed-hosts` "
        "lists the host names that it accepts"
    ),
    ("error code 403", "PERMISSION_DENIED"): (
        "the user of MLFLOW_TRACKING_USERNAME is not allowed to write to this experiment"
    ),
    ("password authentication failed", "no password supplied"): (
        "the tracking database does not accept the password; PGPASSFILE names the file with the password"
    ),
}
"""Parts of an error's text or code -> the message for people. Waiting does not help against any of these errors."""

_UNREACHABLE_CLASSES = {
    "ConnectionError",
    "ChunkedEncodingError",
    "Timeout",
    "TimeoutError",
    "OperationalError",
    "InterfaceError",
}
_UNREACHABLE_TEXTS = ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "error code 5")


def classify_tracking_error(error: BaseException) -> TrackingProblem:
    """Return the problem behind an error that was raised while writing to MLflow."""
    chain = list(_causes(error))
    text = " ".join([*map(str, chain), str(getattr(error, "error_code", ""))])
    classes = {cls.__name__ for cause in chain for cls in type(cause).__mro__}
    if "database is locked" in text:
        return TrackingProblem("another process has locked the database of runs", "unreachable")
    for signs, message in _REFUSALS.items():
        if any(sign in text for sign in signs):
            return TrackingProblem(message, "refused")
    if classes & _UNREACHABLE_CLASSES or any(sign in text for sign in _UNREACHABLE_TEXTS):
        # MLflow and SQLAlchemy wrap a short reason into pages of text. The shortest text is the reason.
        reasons = [cause for cause in chain if str(cause) and not isinstance(cause, (KeyError, sqlite3.Warning))]
        shortest = min(reasons or [error], key=lambda cause: len(str(cause)))
        return TrackingProblem(f"the tracking store cannot be reached: {one_line(shortest, limit=160)}", "unreachable")
    return TrackingProblem(one_line(error), "other")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of its cause, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
