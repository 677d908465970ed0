"""Unpacking untrusted archives: damaged archives and paths outside the folder are refused."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from orchestrator.datasets.fetching.unpack import unpack
from orchestrator.util.errors import UserError

CONTENT = {
    "set/cat/1.bin": np.random.default_rng(1).bytes(3000),
    "set/dog/2.bin": np.random.default_rng(2).bytes(1000),
    "set/empty.txt": b"",
}


def tar_of(path: Path, mode: str, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, body in members:
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return path


def files(content: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(tarfile.TarInfo(name), body) for name, body in content.items()]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def zip_of(path: Path, content: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in content.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, body)
    return path


def read_files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


PACKERS: dict[str, Callable[[Path], Path]] = {
    "tar": lambda folder: tar_of(folder / "a.tar", "w", files(CONTENT)),
    "tar.gz": lambda folder: tar_of(folder / "a.tar.gz", "w:gz", files(CONTENT)),
    "tar.bz2": lambda folder: tar_of(folder / "a.tar.bz2", "w:bz2", files(CONTENT)),
    "tar.xz": lambda folder: tar_of(folder / "a.tar.xz", "w:xz", files(CONTENT)),
    "zip": lambda folder: zip_of(folder / "a.zip", CONTENT),
}


@pytest.mark.parametrize("kind", PACKERS)
def test_every_kind_of_archive_is_unpacked(tmp_path: Path, kind: str) -> None:
    unpack(PACKERS[kind](tmp_path), tmp_path / "out")
    assert read_files(tmp_path / "out") == CONTENT


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path: Path) -> None:
    """Regression: only the content of the zip was unpacked, without a word."""
    inner = zip_of(tmp_path / "a.zip", {"1.txt": b"1"}).read_bytes()
    unpack(tar_of(tmp_path / "a.tar", "w", files({**CONTENT, "labels.zip": inner})), tmp_path / "out")
    assert read_files(tmp_path / "out") == {**CONTENT, "labels.zip": inner}


@pytest.mark.parametrize("kind", PACKERS)
def test_an_archive_truncated_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    archive = PACKERS[kind](tmp_path)
    body = archive.read_bytes()
    # What follows the first zero block of a tar says nothing more.
    whole = 512 + 3072 + 512 + 1024 + 512 + 512 if kind == "tar" else len(body)
    damaged = [body[:length] for length in range(0, whole, 257)] + [b"<html>sorry</html>" * 100]
    damaged += [body[:200] + bytes([body[200] ^ 0xFF]) + body[201:]] if kind == "zip" else []
    for number, content in enumerate(damaged):
        archive.write_bytes(content)
        with pytest.raises(UserError, match=f"{archive.name} is damaged, truncated or no archive"):
            unpack(archive, tmp_path / f"out{number}")


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    members = [*files({"set/1.bin": b"one"}), link("set/2.bin", "1.bin"), link("3.bin", "set/1.bin", tarfile.LNKTYPE)]
    unpack(tar_of(tmp_path / "a.tar", "w", members), tmp_path / "out")
    assert read_files(tmp_path / "out") == {"set/1.bin": b"one", "set/2.bin": b"one", "3.bin": b"one"}


def device(name: str) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member, b""


LEAVING_NAMES = {
    "a path with dots": "../evil", "dots further in": "set/../../evil", "an absolute path": "/tmp/evil",
    "a drive": "c:\\evil", "dots with backslashes": "set\\..\\..\\evil",
}  # fmt: skip
LEAVING_TARS = {
    **{case: files({name: b"x"}) for case, name in LEAVING_NAMES.items()},
    "a link that leaves": [link("out", "../.."), *files({"a": b"x"})],
    "an absolute link": [link("out", "/etc")],
    "a hard link that leaves": [link("out", "../../evil", tarfile.LNKTYPE)],
    "a path through a link": [*files({"set/1": b"x"}), link("way", "set"), *files({"way/2": b"x"})],
    "a file over a link": [*files({"set/1": b"x"}), link("way", "set/1"), *files({"way": b"y"})],
    "a device": [device("null")],
}
LEAVING_ZIPS: dict[str, tuple[dict[str, bytes], dict[str, int]]] = {
    **{case: ({name.replace("\\", "/"): b"x"}, {}) for case, name in LEAVING_NAMES.items()},
    "a link": ({"out": b"/etc"}, {"out": stat.S_IFLNK | 0o777}),
    "a device": ({"null": b""}, {"null": stat.S_IFCHR | 0o666}),
}
LEAVING: dict[str, Callable[[Path], Path]] = {
    **{f"tar, {case}": partial(tar_of, mode="w", members=members) for case, members in LEAVING_TARS.items()},
    **{f"tar.gz, {case}": partial(tar_of, mode="w:gz", members=members) for case, members in LEAVING_TARS.items()},
    **{f"zip, {case}": partial(zip_of, content=of[0], modes=of[1]) for case, of in LEAVING_ZIPS.items()},
}


@pytest.mark.parametrize("case", LEAVING)
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, case: str) -> None:
    archive = LEAVING[case](tmp_path / "archive")
    with pytest.raises(UserError, match="is refused because of its member"):
        unpack(archive, tmp_path / "deep" / "out")
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and "out" not in path.parts]
    assert outside == [archive]
    if case.startswith("zip"):
        assert not [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_zip_bomb_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = {f"{number}.bin": bytes(1 << 20) for number in range(8)}
    path = tmp_path / f"a.{kind}"
    archive = tar_of(path, "w:gz", files(bomb)) if kind == "tar.gz" else zip_of(path, bomb)
    unpack(archive, tmp_path / "small enough not to matter")
    assert read_files(tmp_path / "small enough not to matter") == bomb
    monkeypatch.setattr("orchestrator.datasets.fetching.unpack.ALWAYS_ALLOWED", 3 << 20)
    with pytest.raises(UserError, match="as a zip bomb does"):
        unpack(archive, tmp_path / "out")
    assert sum(map(len, read_files(tmp_path / "out").values())) <= 3 << 20
