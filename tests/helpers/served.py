"""A file server on loopback that can be told to misbehave, and that writes down what it was asked and what it sent."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.helpers.waiting import PATIENCE


@dataclass
class Served:
    """One address's files and manners.

    Attributes:
        files: path -> bytes.
        ranges: whether parts can be asked for.
        headers: path -> further headers of its answers.
        etag, modified: what marks the version; empty: no such header.
        kind: the content type.
        length: whether the length is announced.
        drops: after how many bytes of the body each of the next answers is cut off; one is used up per answer.
        stalls: after how many bytes each of the next answers stops until the server is closed.
        statuses: codes that the next answers have instead, with ``refusal`` as the hub's own word for it.
        asked: headers of every GET, in order.
        sent: bytes of body of every GET.
    """

    files: dict[str, bytes]
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"one"'
    modified: str = ""
    kind: str = "application/octet-stream"
    length: bool = True
    drops: list[int] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    refusal: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    def at(self, name: str) -> str:
        """The address of a file."""
        return f"{self.url}/{name}"


@contextlib.contextmanager
def serve(**manners: object) -> Iterator[Served]:
    """Serve until the end of the block."""
    served = Served(**manners)  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            if self.headers.get("Method") == "HEAD":  # as torchvision asks where an address leads
                self.answer(with_body=False)
                return
            served.asked.append(dict(self.headers))
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            body = served.files.get(name)
            if with_body and served.statuses:
                self.plain(served.statuses.pop(0))
                return
            if body is None:
                self.plain(404)
                return
            start = self.start_of(body)
            if start == len(body) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if served.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.send_header("Content-Type", served.kind)
            for key, value in served.headers.get(name, {"ETag": served.etag} if served.etag else {}).items():
                self.send_header(key, value)
            if served.modified:
                self.send_header("Last-Modified", served.modified)
            self.end_headers()
            if with_body:
                self.send(body[start:])

        def start_of(self, body: bytes) -> int:
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if not served.ranges or wanted is None:
                return 0
            mark = self.headers.get("If-Range")
            return int(wanted[1]) if mark in (None, served.etag, served.modified) else 0

        def send(self, rest: bytes) -> None:
            self.close_connection = True
            stop = served.stalls.pop(0) if served.stalls else None
            cut = served.drops.pop(0) if served.drops else None
            out = rest[: stop if stop is not None else cut]
            served.sent.append(len(out))
            with contextlib.suppress(ConnectionError):
                self.wfile.write(out)
                self.wfile.flush()
            if stop is not None:
                served.closing.wait(PATIENCE)

        def plain(self, code: int) -> None:
            self.send_response(code)
            if served.refusal:
                self.send_header("X-Error-Code", served.refusal)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            served.closing.set()
            server.shutdown()
            thread.join()
