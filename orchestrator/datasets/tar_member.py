"""A tar member whose reader notices that an archive is truncated."""

from __future__ import annotations

import tarfile
from typing import Self


class TarMember(tarfile.TarInfo):
    """A tar member that reports a truncated archive; plain ``tarfile`` takes any invalid block for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """Return the next member. Raises ``tarfile.ReadError`` when the archive ends without its end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed has only its base
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it ends early ({error})") from None
