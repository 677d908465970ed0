"""Download one file over HTTP. An interrupted download continues, and a failed one is tried again.

A partial file is called ``NAME.part``. Beside it, ``NAME.part.json`` holds the address and the server's validator: the
ETag, or else Last-Modified. The next attempt asks for the missing bytes, on the condition that the validator still
matches (RFC 9110, Range and If-Range). A server that does not support ranges sends the whole file again. A partial
file is renamed to ``NAME`` when its length is right. After that, its checksum is compared if one is known.
"""

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import requests
from rich.console import Console

from orchestrator.datasets.progress import show_progress
from orchestrator.util.errors import UserError
from orchestrator.util.identity import file_digest
from orchestrator.util.units import human_bytes

TIMEOUT = 15.0, 60.0
"""Seconds to wait for a connection, and for the next bytes."""

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds to wait before each further attempt. The first wait applies again after an attempt that got some bytes."""

CHUNK = 128 << 10
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
NETWORK_FAULTS = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)

HEADERS = {"User-Agent": "bolt-orchestrator", "Accept-Encoding": "identity"}
"""``identity`` asks for the file uncompressed, so that byte ranges and lengths refer to the file itself."""


class _TryAgain(Exception):
    """The server or the network failed in a way that may pass."""


def download(url: str, target: Path, *, checksum: str | None = None, console: Console) -> None:
    """Fetch ``url`` to ``target``. A file that is there already is not fetched again, but its checksum is compared.

    Args:
        checksum: ``sha256:...`` or ``md5:...``; ``None`` where none is published.
        console: where progress is shown.

    Raises:
        UserError: the server refuses, sends a web page, or cannot be reached in several attempts; the disk is full;
            the checksum is wrong (the file is then renamed to ``NAME.wrong``).
    """
    if not target.is_file():
        _fetch(url, target, console)
    if checksum is None:
        return
    kind, _, wanted = checksum.partition(":")
    if (found := file_digest(target, kind)) != wanted:
        what = f"{target.name} has the wrong {kind}: {found}, where {wanted} is expected"
        hint = f"the file was moved to {quarantine(target)}; run the same command to fetch it again. "
        hint += "If the checksum is wrong again, the file at that address is not the catalog's file"
        raise UserError(what, where=url, hint=hint)


def quarantine(file: Path) -> Path:
    """Rename a file with a wrong checksum to ``NAME.wrong``, so that the next attempt fetches it again.

    Return the new path.
    """
    return file.replace(file.with_name(f"{file.name}.wrong"))


def announced_size(url: str) -> int | None:
    """Return the size in bytes that a server states for a URL.

    Return ``None`` if the server states no size, refuses, sends a web page, or does not answer.
    """
    with suppress(requests.RequestException):
        response = requests.head(url, headers=HEADERS, timeout=TIMEOUT, allow_redirects=True)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        return _extent(response)[1] if response.ok and not is_page else None
    return None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch(url: str, target: Path, console: Console) -> None:
    """Fetch a file in as many attempts as it takes. Raises ``UserError`` after several failures in a row."""
    failures, part = 0, target.with_name(f"{target.name}.part")
    while True:
        before = _size(part)
        try:
            _attempt(url, part, target, console)
        except (_TryAgain, *NETWORK_FAULTS) as error:
            failures = 0 if _size(part) > before else failures + 1
            if failures > len(PAUSES):
                hint = f"{human_bytes(_size(part))} are kept; the same command continues from there"
                raise UserError(f"{target.name} cannot be fetched: {error}", where=url, hint=hint) from None
            seconds = PAUSES[max(failures, 1) - 1]
            console.print(f"{target.name}: {error}; trying again in {seconds:g} s", highlight=False, soft_wrap=True)
            time.sleep(seconds)
        except requests.RequestException as error:
            raise UserError(f"{target.name} cannot be fetched: {error}", where=url) from None
        else:
            os.replace(part, target)
            _state_path(part).unlink(missing_ok=True)
            return


def _attempt(url: str, part: Path, target: Path, console: Console) -> None:
    """Send one request: for the missing bytes of a partial file if its validator is known, else for the whole file.

    Raises ``_TryAgain`` for a failure that may pass, and ``UserError`` for any other.
    """
    have = _size(part)
    validator = _recorded_validator(part, url) if have else ""
    headers = {**HEADERS, "Range": f"bytes={have}-", "If-Range": validator} if validator else HEADERS
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if validator and response.status_code == 416:  # the server has no more bytes: the file is complete or changed
            if response.headers.get("Content-Range", "") == f"bytes */{have}":
                return
            part.unlink()
            raise _TryAgain("the file has changed on the server")
        _refuse(response, url, target)
        start, total = _extent(response)
        if start not in (0, have):
            part.unlink()
            raise _TryAgain(f"the server sent another range than requested (from byte {start})")
        if start == 0:
            part.unlink(missing_ok=True)  # the old bytes do not fit the validator that is written next
            _state_path(part).write_text(json.dumps({"url": url, "validator": _validator(response)}))
        # urllib3 must not check the length: it would discard the last partial chunk of a broken connection.
        response.raw.enforce_content_length = False
        found = start
        with show_progress(target.name, console, start=start, in_bytes=True) as report, open(part, "ab") as stream:
            for chunk in response.iter_content(CHUNK):
                stream.write(chunk)
                found += len(chunk)
                report(found, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total is not None and found < total:
        raise _TryAgain(f"the connection ended after {human_bytes(found)} of {human_bytes(total)}")
    if total is not None and found > total:
        part.unlink()
        raise _TryAgain(f"the server sent {found} bytes instead of {total}")


def _state_path(part: Path) -> Path:
    """Return the path of the file with the address and the validator of a partial file."""
    return part.with_name(f"{part.name}.json")


def _recorded_validator(part: Path, url: str) -> str:
    """Return the recorded validator of a partial file, for ``If-Range``; empty if none is recorded for this URL."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        state = json.loads(_state_path(part).read_text())
        return str(state["validator"]) if state["url"] == url else ""
    return ""


def _refuse(response: requests.Response, url: str, target: Path) -> None:
    """Raise an error if the answer is not the file: ``_TryAgain`` if the failure may pass, else ``UserError``."""
    if (code := response.status_code) in TRY_AGAIN:
        raise _TryAgain(f"the server answered {code} {response.reason}")
    if code >= 400:
        hints = {
            401: "the server needs an account or a token; see the dataset's page",
            403: "the server needs an account or a token, or refuses programs; see the dataset's page",
            404: f"the file is no longer at this address; if you have it from elsewhere, save it as {target}",
        }
        raise UserError(f"the server answered {code} {response.reason}", where=url, hint=hints.get(code, ""))
    if response.headers.get("Content-Type", "").startswith("text/html"):
        drive = (urlsplit(url).hostname or "").endswith(("drive.google.com", "drive.usercontent.google.com"))
        reason = "Google Drive asks for a click before it sends large files" if drive else "the address shows a page"
        hint = f"fetch it with a browser, save it as {target}, and run the same command again"
        raise UserError(f"{reason}, so {target.name} cannot be fetched by a program", where=url, hint=hint)


def _extent(response: requests.Response) -> tuple[int, int | None]:
    """Return where in the file the answer begins, in bytes, and the size of the file if the server states it."""
    if response.status_code == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None:
            raise _TryAgain("the server sent a part without a Content-Range header")
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"  # then ``length`` counts encoded bytes
    return 0, int(length) if length.isdigit() and not encoded else None


def _validator(response: requests.Response) -> str:
    """Return the validator for ``If-Range``. A weak ETag is not used: different bytes may share it."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
