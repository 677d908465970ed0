"""Errors of a store and of its disk: their messages for people, the search for their causes, and retries."""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from orchestrator.util.errors import UserError, one_line

T = TypeVar("T")

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each new attempt on a remote store. Within each attempt, the client library retries several times."""

DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the disk does not support files of that size",
    errno.EROFS: "the disk is read-only",
}

_CREDENTIALS = "s3fs takes credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or the machine's role"
_ENDPOINT = "if the server is not AWS's own, check that AWS_ENDPOINT_URL is right and the server is up"

_EXPLANATIONS = {
    "NoSuchBucket": ("there is no such bucket", "create it, or correct the URL; " + _ENDPOINT),
    "InvalidBucketName": ("this is not a valid bucket name", "s3://BUCKET/FOLDER"),
    "InvalidAccessKeyId": ("the server does not know these credentials", _CREDENTIALS),
    "SignatureDoesNotMatch": ("the server refuses these credentials", _CREDENTIALS),
    "ExpiredToken": ("the credentials have expired", _CREDENTIALS),
    "AccessDenied": ("access is denied", "the credentials must allow to list, read, write and delete objects"),
    "NoCredentialsError": ("there are no credentials", _CREDENTIALS),
    "PartialCredentialsError": ("the credentials are incomplete", _CREDENTIALS),
    "TokenRetrievalError": ("the credentials cannot be renewed", _CREDENTIALS),
    "EndpointConnectionError": ("the server cannot be reached", _ENDPOINT),
    "ConnectTimeoutError": ("the server does not answer", _ENDPOINT),
    "ReadTimeoutError": ("the server does not answer", _ENDPOINT),
    "ConnectionClosedError": ("the server cannot be reached", _ENDPOINT),
    "SlowDown": ("the server asks for fewer requests", "run fewer workers, or wait before the next run"),
    "PermanentRedirect": ("the bucket is in another region", "set AWS_DEFAULT_REGION to the region of the bucket"),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "set AWS_DEFAULT_REGION to its region"),
}
"""Message and hint for an error, by the server's error code or the name of the error's class."""

_LOCAL_EXPLANATIONS: dict[type[BaseException], tuple[str, str]] = {
    PermissionError: ("permission is denied", "change the folder's permissions, or use another --store"),
    NotADirectoryError: ("a part of this path is a file, where a folder should be", "move that file away"),
    IsADirectoryError: ("a folder is there, where a file should be", "move that folder away"),
}
"""Message and hint for an error of a local store, by the class of the error."""

_DRIVER_MODULES = ("botocore", "aiobotocore", "aiohttp", "s3fs", "fsspec", "gcsfs", "adlfs")

_PREFIX = "the store cannot be used"


class StoreUnavailable(UserError, OSError):
    """A store, or its disk, cannot be read or written.

    The class is also an ``OSError``, so that code which tolerates a failing disk tolerates a failing store.
    """


class RunStopped(UserError):
    """The store cannot be used, so the run was stopped. Finished cells are kept; the same command continues."""

    def __init__(self, url: str, reason: str) -> None:
        what = reason if reason.startswith(_PREFIX) else f"{_PREFIX} ({reason}), so the run was stopped"
        hint = "finished work is kept, nothing was recorded as failed; repair the store and run the same command again"
        super().__init__(what, where=url, hint=hint)


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Turn errors of the disk and of the library that reads a remote store into :class:`StoreUnavailable`.

    The error names the file, or ``url`` if the store is remote or the file is unknown. ``FileNotFoundError`` and
    ``FileExistsError`` are passed on, except for a missing bucket.
    """
    try:
        yield
    except StoreUnavailable:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError | FileExistsError) and _code(error) not in _EXPLANATIONS:
            raise
        if not isinstance(error, OSError) and not type(error).__module__.startswith(_DRIVER_MODULES):
            raise
        file = error.filename if isinstance(error, OSError) and "://" not in url else None
        raise store_unavailable(error, str(file or url)) from error


def store_unavailable(error: BaseException, url: str) -> StoreUnavailable:
    """Return the error of a driver or disk as a :class:`StoreUnavailable` that says what is wrong and what to do."""
    what, hint = _EXPLANATIONS.get(_code(error), ("", ""))
    if not what and isinstance(error, OSError):
        what = DISK_ERRORS.get(error.errno or 0, "")
    if not what and isinstance(error, PermissionError) and "://" in url:
        what, hint = _EXPLANATIONS["AccessDenied"]
    if not what and "://" not in url:
        what, hint = _LOCAL_EXPLANATIONS.get(type(error), ("", ""))
    found = StoreUnavailable(f"{_PREFIX}: {what or one_line(error)}", where=url, hint=hint)
    found.errno = error.errno if isinstance(error, OSError) else None
    return found


def _code(error: BaseException) -> str:
    """Return the server's error code or, if there is none, the name of the error's class."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict) and isinstance(code := response.get("Error", {}).get("Code"), str):
            return code
    return type(error).__name__


def is_store_error(error: BaseException) -> bool:
    """Return whether the store or its disk caused an error. The chain of ``__cause__`` is searched."""
    found = (cause for cause in causes(error) if isinstance(cause, OSError))
    return any(isinstance(cause, StoreUnavailable) or cause.errno in DISK_ERRORS for cause in found)


def store_error(error: BaseException) -> str:
    """Return in one line why the store cannot be used."""
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return DISK_ERRORS[cause.errno]
    return one_line(error.what if isinstance(error, UserError) else error)


def retry_store(store_is_local: bool, action: Callable[[], T]) -> T:
    """Return ``action()``. If a remote store is unavailable, call ``action`` again after each of :data:`PAUSES`.

    After a full disk or refused credentials, and on a local store, there is no second call.
    """
    for pause in () if store_is_local else PAUSES:
        try:
            return action()
        except StoreUnavailable as error:
            if error.errno in DISK_ERRORS or isinstance(error.__cause__, PermissionError):
                raise
            time.sleep(pause)
    return action()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the chain of its ``__cause__``."""
    while error is not None:
        yield error
        error = error.__cause__
