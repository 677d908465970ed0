"""Opens a store's fsspec driver, and turns the driver's errors into messages that say what to do.

The driver of ``s3://`` (s3fs) reads endpoint, credentials and options from ``AWS_*`` variables, ``~/.aws``, the
machine's role, or ``FSSPEC_S3_*``.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import fsspec

from orchestrator.util.errors import UserError, one_line

CONNECTIONS = 64
"""Largest number of concurrent requests; botocore's default is ten."""

DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the disk does not support files of that size",
    errno.EROFS: "the disk is read-only",
}

_CREDENTIALS = "s3fs takes credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or the machine's role"
_ENDPOINT = "AWS_ENDPOINT_URL names another server than AWS's own; is it right, and is the server up?"

_EXPLANATIONS = {
    "NoSuchBucket": ("there is no such bucket", "create it, or correct the URL; " + _ENDPOINT),
    "InvalidBucketName": ("this is not a valid bucket name", "s3://BUCKET/FOLDER"),
    "InvalidAccessKeyId": ("the server does not know these credentials", _CREDENTIALS),
    "SignatureDoesNotMatch": ("the server refuses these credentials", _CREDENTIALS),
    "ExpiredToken": ("the credentials have expired", _CREDENTIALS),
    "AccessDenied": ("these credentials do not allow that", "they must list, read, write and delete objects"),
    "NoCredentialsError": ("there are no credentials", _CREDENTIALS),
    "PartialCredentialsError": ("the credentials are incomplete", _CREDENTIALS),
    "TokenRetrievalError": ("the credentials cannot be renewed", _CREDENTIALS),
    "EndpointConnectionError": ("the server cannot be reached", _ENDPOINT),
    "ConnectTimeoutError": ("the server does not answer", _ENDPOINT),
    "ReadTimeoutError": ("the server does not answer", _ENDPOINT),
    "ConnectionClosedError": ("the server cannot be reached", _ENDPOINT),
    "PermanentRedirect": ("the bucket is in another region", "AWS_DEFAULT_REGION names the region"),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "AWS_DEFAULT_REGION names the region"),
}
"""Error code of a server, or class of an error -> what is wrong, and what to do."""

_LOCAL_EXPLANATIONS: dict[type[BaseException], tuple[str, str]] = {
    PermissionError: ("this user is not allowed to do that", "change the folder's permissions, or use another --store"),
    NotADirectoryError: ("a part of this path is a file, where a folder should be", "move that file away"),
    IsADirectoryError: ("a folder is there, where a file should be", "move that folder away"),
}
"""The same for a store in a folder, by class of the error."""

_DRIVER_MODULES = ("botocore", "aiobotocore", "aiohttp", "s3fs", "fsspec", "gcsfs", "adlfs")


class StoreUnavailable(UserError, OSError):
    """A store, or the disk it is on, cannot be read or written.

    It is also an ``OSError``, so that code which tolerates a failing disk tolerates a failing store.
    """


def open_filesystem(url: str) -> tuple[Any, str]:
    """The driver for a URL, and the root path in it. Raises ``UserError`` for a URL that no installed driver opens."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("s3", "s3a") and not rest.strip("/"):
        raise UserError("the URL names no bucket", where=url, hint="s3://BUCKET/FOLDER")
    # Other processes write into the store, so listings must not be cached.
    options: dict[str, Any] = {"use_listings_cache": False} if separator else {}
    if scheme in ("s3", "s3a") and not {"config_kwargs", "config"} & set(fsspec.config.conf.get("s3", {})):
        options["config_kwargs"] = {"max_pool_connections": CONNECTIONS}
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise UserError(
            f"cannot use {url!r} as a store: {one_line(error)}",
            hint="give a folder, or a URL whose driver is installed (s3:// needs s3fs: pip install "
            "'bolt-orchestrator[cluster]')",
        ) from None
    return filesystem, str(root).rstrip("/")


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Turn the driver's errors in the block into :class:`StoreUnavailable`, except missing and existing files."""
    try:
        yield
    except StoreUnavailable:
        raise
    except (OSError, TimeoutError) as error:
        if _code(error) not in _EXPLANATIONS and isinstance(error, FileNotFoundError | FileExistsError):
            raise
        raise store_unavailable(error, url) from error
    except Exception as error:
        if not type(error).__module__.startswith(_DRIVER_MODULES):
            raise
        raise store_unavailable(error, url) from error


def store_unavailable(error: BaseException, url: str) -> StoreUnavailable:
    """The error of a driver or disk as a :class:`StoreUnavailable` that says what is wrong and what to do."""
    what, hint = _EXPLANATIONS.get(_code(error), ("", ""))
    if not what and isinstance(error, OSError):
        what = DISK_ERRORS.get(error.errno or 0, "")
    if not what and isinstance(error, PermissionError) and "://" in url:
        what, hint = _EXPLANATIONS["AccessDenied"]
    if not what and "://" not in url:
        what, hint = _LOCAL_EXPLANATIONS.get(type(error), ("", ""))
    found = StoreUnavailable(f"the store cannot be used: {what or one_line(error)}", where=url, hint=hint)
    found.errno = error.errno if isinstance(error, OSError) else None
    return found


def _code(error: BaseException) -> str:
    """The server's error code, or the name of the error's class."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict) and isinstance(code := response.get("Error", {}).get("Code"), str):
            return code
    return type(error).__name__
