"""Unpack untrusted archives safely: tar (plain, gzip, bzip2, xz) and zip, into one folder only.

Refused: absolute paths, ``..``, links that leave the folder, paths that pass through a link, devices and pipes, and
archives that grow beyond a ratio or the free space. An archive with one such member is refused as a whole.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Self

from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes

MAX_GROWTH = 100
"""Largest ratio of unpacked to packed bytes. Photographs hardly grow, tables grow tenfold, zip bombs thousandfold."""

ALWAYS_ALLOWED = 256 << 20
"""Bytes that any archive may unpack to, so that small archives of blank images are not refused."""

SPACE_KEPT = 64 << 20
"""Bytes of the disk that unpacking leaves free."""

CHUNK = 1 << 20
DAMAGED = (tarfile.ReadError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)


class _Member(tarfile.TarInfo):
    """A tar member that reports a truncated archive; plain ``tarfile`` takes any invalid block for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """The next member. Raises ``tarfile.ReadError`` when the archive ends without its end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed has only its base
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it ends early ({error})") from None


class _Budget:
    """Limits the unpacked bytes by the archive's size and by the free disk space."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive, self._folder = archive, folder
        self._left = max(MAX_GROWTH * archive.stat().st_size, ALWAYS_ALLOWED)

    def spend(self, size: int, member: str) -> None:
        """Count ``size`` more bytes. Raises ``UserError`` when they are too many."""
        self._left -= size
        if self._left < 0:
            why = f"it unpacks to more than {MAX_GROWTH} times its size, as a zip bomb does"
            raise _refused(self._archive, member, why)
        free = shutil.disk_usage(self._folder).free
        if size + SPACE_KEPT > free:
            raise UserError(
                f"the disk has {human_bytes(free)} left, too little for {member} ({human_bytes(size)})",
                where=str(self._folder),
                hint="free some space and run the same command again; what was downloaded is kept",
            )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``archive`` into ``folder``, which is created.

    Raises:
        UserError: the archive is neither tar nor zip, is damaged or truncated, or is refused as this module's docstring
            says. Files written before that stay in ``folder``; the caller removes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        unpack_kind = _unpack_zip if zipfile.is_zipfile(archive) else _unpack_tar
        unpack_kind(archive, folder, _Budget(archive, folder))
    except DAMAGED as error:
        raise UserError(
            f"{archive.name} is damaged, truncated or no archive: {error}",
            where=str(archive),
            hint="remove it and run the same command to fetch it again",
        ) from None


def _unpack_tar(archive: Path, folder: Path, budget: _Budget) -> None:
    """One pass over the stream, so that a compressed archive is decompressed once."""
    with tarfile.open(archive, "r|*", tarinfo=_Member) as stream:
        for member in stream:
            _check_path(archive, folder, member.name)
            budget.spend(member.size if member.isreg() else 0, member.name)
            try:
                stream.extract(member, folder, filter="data")
            except tarfile.FilterError as error:
                raise _refused(archive, member.name, str(error)) from None


def _unpack_zip(archive: Path, folder: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, member.filename, "it is a link or a device")
            if member.flag_bits & 1:
                raise _refused(archive, member.filename, "it is encrypted")
            target = _check_path(archive, folder, member.filename)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            budget.spend(member.file_size, member.filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, open(target, "wb") as sink:  # never more than file_size bytes
                shutil.copyfileobj(source, sink, CHUNK)


def _check_path(archive: Path, folder: Path, name: str) -> Path:
    """Where a member goes. Raises ``UserError`` for a path that leaves ``folder`` or passes through a link."""
    plain = name.replace("\\", "/")
    path = PurePosixPath(plain)
    if path.is_absolute() or ".." in path.parts or (plain[1:2] == ":" and plain[:1].isalpha()):
        raise _refused(archive, name, "its path leaves the folder")
    target = folder / path
    if any(step.is_symlink() for step in (target, *target.parents) if step.is_relative_to(folder) and step != folder):
        raise _refused(archive, name, "its path passes through a link")
    return target


def _refused(archive: Path, member: str, why: str) -> UserError:
    return UserError(
        f"{archive.name} is refused because of its member {member!r}: {why}",
        where=str(archive),
        hint="nothing of it is used; get the archive from a source you trust",
    )
