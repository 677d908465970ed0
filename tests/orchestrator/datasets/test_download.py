"""Downloads over real connections are complete or absent, resume after an interruption, and are checked."""

import hashlib
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.datasets.fetching.download import PAUSES, announced_size, download
from orchestrator.util.errors import UserError
from tests.helpers.file_server import FileServer, serve

BODY = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
CUT = 120_000
FILES = {"set.tar": BODY}


def digest(body: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, body).hexdigest()}"


def fetch(server: FileServer, folder: Path, checksum: str | None = None) -> Path:
    """Download without waiting between attempts."""
    quiet, target = Console(file=io.StringIO()), folder / "set.tar"
    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr("orchestrator.datasets.fetching.download.PAUSES", (0.0,) * 5)
        download(server.url_of("set.tar"), target, checksum=checksum, console=quiet)
    return target


@contextmanager
def half_fetched(folder: Path) -> Iterator[FileServer]:
    """A server that was away, after the first bytes, until the command gave up."""
    with serve(files=dict(FILES), drops=[CUT, *[0] * (len(PAUSES) + 1)]) as server:
        with pytest.raises(UserError, match=r"cannot be fetched.*\n.*117.2 KiB are kept"):
            fetch(server, folder)
        yield server


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_complete_file_is_not_fetched_again(tmp_path: Path, kind: str) -> None:
    with serve(files=FILES) as server:
        for _ in range(2):
            assert fetch(server, tmp_path, digest(BODY, kind)).read_bytes() == BODY
        assert server.sent == [len(BODY)]
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar"]


WHOLE, DATE = len(BODY), "Mon, 02 Nov 2026 10:00:00 GMT"
# name -> (what the server does, the bytes of each answer)
ANSWERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "dropped twice": ({"drops": [CUT, 50_000]}, [CUT, 50_000, WHOLE - CUT - 50_000]),
    "the version is its date": ({"drops": [CUT], "etag": "", "last_modified": DATE}, [CUT, WHOLE - CUT]),
    "no ranges": ({"drops": [CUT], "ranges": False}, [CUT, WHOLE]),
    "no version": ({"drops": [CUT], "etag": ""}, [CUT, WHOLE]),
    "a weak version": ({"drops": [CUT], "etag": 'W/"weak"'}, [CUT, WHOLE]),
    "busy": ({"statuses": [503, 429]}, [WHOLE]),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_download_is_resumed_without_repeating_bytes_where_that_is_safe(tmp_path: Path, case: str) -> None:
    behaviour, sent = ANSWERS[case]
    with serve(files=FILES, **behaviour) as server:
        assert fetch(server, tmp_path, digest(BODY)).read_bytes() == BODY
        assert server.sent == sent
        for request in server.requests:
            assert "Range" not in request or request["If-Range"] == (server.etag or server.last_modified)
        if sent[-1] == WHOLE and server.ranges:
            assert all("Range" not in request for request in server.requests)


def test_a_later_command_resumes_the_partial_file(tmp_path: Path) -> None:
    with half_fetched(tmp_path) as server:
        assert (tmp_path / "set.tar.part").stat().st_size == CUT
        assert not (tmp_path / "set.tar").exists()
        assert fetch(server, tmp_path).read_bytes() == BODY
        assert sum(server.sent) == WHOLE


def test_a_file_that_changed_on_the_server_is_never_mixed_with_its_old_bytes(tmp_path: Path) -> None:
    with half_fetched(tmp_path) as server:
        server.files["set.tar"], server.etag = OTHER, '"two"'
        assert fetch(server, tmp_path).read_bytes() == OTHER


def test_a_complete_partial_file_is_renamed_without_fetching(tmp_path: Path) -> None:
    with half_fetched(tmp_path) as server:
        with open(tmp_path / "set.tar.part", "ab") as stream:
            stream.write(BODY[CUT:])
        assert fetch(server, tmp_path, digest(BODY)).read_bytes() == BODY
        assert sum(server.sent) == CUT


def test_a_wrong_checksum_is_reported_and_the_file_renamed(tmp_path: Path) -> None:
    with serve(files=FILES) as server:
        with pytest.raises(UserError) as failed:
            fetch(server, tmp_path, digest(OTHER))
        assert digest(BODY).partition(":")[2] in str(failed.value)
        assert digest(OTHER).partition(":")[2] in str(failed.value)
        assert [path.name for path in tmp_path.iterdir()] == ["set.tar.wrong"]
        server.files = {"set.tar": OTHER}
        assert fetch(server, tmp_path, digest(OTHER)).read_bytes() == OTHER


@pytest.mark.parametrize(("code", "hint"), [(404, r"set\.tar$"), (403, "account or a token"), (401, "token")])
def test_a_refusal_is_not_retried(tmp_path: Path, code: int, hint: str) -> None:
    with serve(files=FILES, statuses=[code]) as server:
        with pytest.raises(UserError, match=hint):
            fetch(server, tmp_path)
        assert len(server.requests) == 1
    assert not list(tmp_path.glob("set.tar"))


def test_a_web_page_is_not_saved_as_the_file(tmp_path: Path) -> None:
    with serve(files=FILES, content_type="text/html; charset=utf-8") as server:
        with pytest.raises(UserError, match="shows a page") as failed:
            fetch(server, tmp_path)
        assert announced_size(server.url_of("set.tar")) is None
    assert str(tmp_path / "set.tar") in str(failed.value)
    (tmp_path / "set.tar").write_bytes(BODY)  # as the hint says
    assert fetch(server, tmp_path, digest(BODY)).read_bytes() == BODY


def test_the_size_is_read_before_the_download_and_an_unreachable_server_is_named(tmp_path: Path) -> None:
    with serve(files=FILES) as server:
        assert announced_size(server.url_of("set.tar")) == WHOLE
        assert announced_size(server.url_of("other.tar")) is None
    with pytest.raises(UserError, match=r"set\.tar cannot be fetched"):
        fetch(server, tmp_path)
    assert announced_size(server.url_of("set.tar")) is None
