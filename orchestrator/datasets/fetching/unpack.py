"""Unpack untrusted archives safely: tar (plain, gzip, bzip2, xz) and zip, into one folder only.

An archive is refused if one of its members has an absolute path or ``..``, is a link that leaves the folder, has a path
that passes through a link, or is a device or a pipe. An archive that grows beyond ``MAX_GROWTH`` is refused too.
"""

import lzma
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from orchestrator.datasets.routes.tar_shards import TarMember
from orchestrator.util.errors import UserError, explained

MAX_GROWTH = 100
"""Largest ratio of unpacked to packed bytes. Photographs hardly grow, tables grow tenfold, zip bombs thousandfold."""

ALWAYS_ALLOWED = 256 << 20
"""Unpacked size in bytes that is allowed at any ratio, so that a small archive of blank images is not refused."""

DAMAGED = (tarfile.ReadError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``archive`` into ``folder``, which is created.

    Raises:
        UserError: the archive is neither tar nor zip, is damaged or truncated, or is refused as this module's docstring
            says. The files that were written by then stay in ``folder``; the caller removes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unpacking = _Unpacking(archive, folder)
    what, hint = f"{archive.name} is damaged, truncated or no archive", "remove it; the same command fetches it again"
    with explained(*DAMAGED, what=what, where=str(archive), hint=hint):
        if zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive):  # a tar may end with a zip
            unpacking.unpack_zip()
        else:
            unpacking.unpack_tar()


class _Unpacking:
    """The unpacking of one archive into a folder. ``left``: how many bytes may still be unpacked."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.left = max(MAX_GROWTH * archive.stat().st_size, ALWAYS_ALLOWED)

    def unpack_tar(self) -> None:
        """Unpack in one pass over the stream, so that a compressed archive is decompressed once."""
        with tarfile.open(self.archive, "r|*", tarinfo=TarMember) as stream:
            for member in stream:
                self.check(member.name, member.size if member.isreg() else 0)
                try:
                    stream.extract(member, self.folder, filter="data")
                except tarfile.FilterError as error:
                    raise self.refused(member.name, str(error)) from None

    def unpack_zip(self) -> None:
        """Unpack every file of a zip archive."""
        with zipfile.ZipFile(self.archive) as opened:
            for member in opened.infolist():
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise self.refused(member.filename, "it is a link or a device")
                if member.flag_bits & 1:
                    raise self.refused(member.filename, "it is encrypted")
                self.check(member.filename, member.file_size)
                member.filename = member.filename.replace("\\", "/")
                opened.extract(member, self.folder)  # writes at most ``file_size`` bytes

    def check(self, name: str, size: int) -> None:
        """Raise ``UserError`` if a member's path is unsafe, or if its ``size`` in bytes makes the archive too large."""
        plain = name.replace("\\", "/")
        path = PurePosixPath(plain)
        if path.is_absolute() or ".." in path.parts or (plain[1:2] == ":" and plain[:1].isalpha()):
            raise self.refused(name, "its path leaves the folder")
        if any((self.folder / step).is_symlink() for step in (path, *path.parents[:-1])):
            raise self.refused(name, "its path passes through a link")
        self.left -= size
        if self.left < 0:
            raise self.refused(name, f"the archive would grow more than {MAX_GROWTH}-fold, as a zip bomb does")

    def refused(self, member: str, why: str) -> UserError:
        """Return the error for an archive that is refused because of one member."""
        what = f"{self.archive.name} is refused because of its member {member!r}: {why}"
        hint = "no file of the archive is used; get the archive from a source you trust"
        return UserError(what, where=str(self.archive), hint=hint)
