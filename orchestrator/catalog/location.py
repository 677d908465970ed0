"""The folder of the project's grids, and locations in grid and catalog files, which error messages name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.util.errors import UserError, shorten, unknown_name


@cache
def grids_folder() -> Path:
    """Return the folder of grids, catalog files and published numbers: ``_grids`` in an installed wheel, or ``grids/``.

    Raises ``UserError`` if neither folder exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_grids", package.parent / "grids"):
        if (folder / "datasets").is_dir():
            return folder
    hint = "reinstall the project, or run it from a complete checkout"
    raise UserError("the folder of grids and catalog files is missing", where=str(package.parent / "grids"), hint=hint)


def display_path(path: Path) -> str:
    """Return the text of a path for messages: ``grids/...`` for a file of the project, otherwise the path as given."""
    try:
        return f"grids/{path.resolve().relative_to(grids_folder()).as_posix()}"
    except (ValueError, OSError, RuntimeError):  # the path is outside of the folder or cannot be resolved
        return shorten(str(path))


@dataclass(frozen=True)
class Location:
    """The location of a value: a file or a command-line option, and the keys that lead to the value inside the file.

    ``Location("grids/demo.yaml") / "blocks" / 0 / "shots"`` prints as ``grids/demo.yaml: blocks[0].shots``.
    """

    file: str
    path: str = ""

    @classmethod
    def of(cls, path: Path) -> Location:
        """Return the location of a file's top level."""
        return cls(display_path(path))

    def __truediv__(self, key: str | int) -> Location:
        """Return the location of a key or a list index below this location."""
        if isinstance(key, int):
            return Location(self.file, f"{self.path}[{key}]")
        return Location(self.file, f"{self.path}.{key}" if self.path else key)

    def __str__(self) -> str:
        return f"{self.file}: {shorten(self.path)}" if self.path else self.file

    def error(self, what: str, hint: str = "") -> UserError:
        """Return an error that says what is wrong at this location."""
        return UserError(what, where=str(self), hint=hint)

    def unknown_name(self, kind: str, name: object, known: Iterable[str]) -> UserError:
        """Return an error for a name at this location that is not among ``known``, with the nearest names."""
        return unknown_name(kind, name, known, where=str(self))
