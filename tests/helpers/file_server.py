"""A file server on the loopback interface that can drop, stall or refuse answers, and that records its requests."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from tests.helpers.waiting import TIMEOUT


@dataclass
class FileServer:
    """The files of a running server, its behaviour, and what it has answered.

    Attributes:
        files: path -> content.
        headers: path -> headers of its answers, in place of ``etag``.
        ranges: whether the server answers range requests.
        etag, last_modified: the headers that mark a version; an empty one is not sent.
        content_type: the header of that name.
        length: whether the server sends ``Content-Length``.
        drops: for each of the next answers, the bytes after which the connection is closed.
        stalls: for each of the next answers, the bytes after which the answer pauses until the server is closed.
        statuses: for each of the next answers, an HTTP status code that is sent instead of a file.
        error_code: the hub's header ``X-Error-Code`` of answers without a file.
        requests: headers of every GET request, in order.
        sent: bytes of the body of every answer to a GET request.
        url: the address of the server.
        closing: set when the server is being closed.
    """

    files: dict[str, bytes]
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"one"'
    last_modified: str = ""
    content_type: str = "application/octet-stream"
    length: bool = True
    drops: list[int] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    error_code: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    def url_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"


def hub_answers(kind: str, repo: str, commit: str, content: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the options of :func:`serve` for a hub with one repository of ``datasets`` or ``models``."""
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in content.items()}
    siblings = [
        {"rfilename": name, "size": len(body), "blobId": sums[name][:40],
         **({"lfs": {"size": len(body), "sha256": sums[name], "pointerSize": 130}} if "parquet" in name else {})}
        for name, body in content.items()
    ]  # fmt: skip
    info = {"id": repo, "sha": commit, "siblings": siblings, "private": False, "gated": False}
    body = json.dumps({**info, "tags": [], "downloads": 1}).encode()
    api = {f"api/{kind}/{repo}": body, f"api/{kind}/{repo}/revision/{commit}": body}
    stem = f"{'' if kind == 'models' else f'{kind}/'}{repo}/resolve/{commit}"
    headers = {f"{stem}/{name}": {"ETag": f'"{sums[name]}"', "X-Repo-Commit": commit} for name in content}
    return {"files": {**api, **{f"{stem}/{name}": body for name, body in content.items()}}, "headers": headers}


@contextlib.contextmanager
def serve(**options: object) -> Iterator[FileServer]:
    """Run a server with these attributes until the end of the block."""
    server = FileServer(**options)  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            if self.headers.get("Method") == "HEAD":  # torchvision sends this to find out where a URL redirects to
                self.answer(with_body=False)
                return
            server.requests.append(dict(self.headers))
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            body = server.files.get(name)
            if body is None or (with_body and server.statuses):
                code = server.statuses.pop(0) if with_body and server.statuses else 404
                self.plain(code, {"X-Error-Code": server.error_code} if server.error_code else {})
                return
            start = self.start_of(body)
            if start == len(body) > 0:
                self.plain(416, {"Content-Range": f"bytes */{len(body)}"})
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if server.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.send_header("Content-Type", server.content_type)
            for key, value in server.headers.get(name, {"ETag": server.etag} if server.etag else {}).items():
                self.send_header(key, value)
            if server.last_modified:
                self.send_header("Last-Modified", server.last_modified)
            self.end_headers()
            if with_body:
                self.send(body[start:])

        def start_of(self, body: bytes) -> int:
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if not server.ranges or wanted is None:
                return 0
            mark = self.headers.get("If-Range")
            return int(wanted[1]) if mark in (None, server.etag, server.last_modified) else 0

        def send(self, rest: bytes) -> None:
            self.close_connection = True
            stop = server.stalls.pop(0) if server.stalls else None
            cut = server.drops.pop(0) if server.drops else None
            out = rest[: stop if stop is not None else cut]
            server.sent.append(len(out))
            with contextlib.suppress(ConnectionError):
                self.wfile.write(out)
                self.wfile.flush()
            if stop is not None:
                server.closing.wait(TIMEOUT)

        def plain(self, code: int, headers: Mapping[str, str]) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _running(Handler) as server.url:
        try:
            yield server
        finally:
            server.closing.set()


@contextlib.contextmanager
def losing_an_answer(address: str) -> Iterator[str]:
    """Pass requests on to the server at ``address``. The answer to the first PUT is lost on the way back.

    Raises ``AssertionError`` at the end if there was no PUT.
    """
    lost: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # answers ``Expect: 100-continue``

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            answer = requests.request(self.command, address + self.path, data=body, headers=dict(self.headers))
            self.close_connection = True
            if self.command == "PUT" and not lost:
                lost.append(self.path)
                return
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_HEAD = do_PUT = do_DELETE = forward

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _running(Handler) as url:
        yield url
    assert lost, "no answer was lost"


@contextlib.contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()
