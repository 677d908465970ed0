"""The folder of the project's grids, and the locations in its files that error messages name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.util.errors import UserError, shorten, unknown_name


@cache
def grids_folder() -> Path:
    """Return the folder of grids, catalog files and published numbers.

    It is in the installed wheel, or is the repository's ``grids/``.

    Raises ``UserError`` if neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_grids", package.parent / "grids"):
        if (folder / "datasets").is_dir():
            return folder
    raise UserError(
        "the folder of grids and catalog files is missing",
        where=str(package.parent / "grids"),
        hint="reinstall the project, or run it from a complete checkout",
    )


def display_path(path: Path) -> str:
    """Return a path as messages show it: ``grids/...`` for a file of the project, otherwise the path as given."""
    try:
        return f"grids/{path.resolve().relative_to(grids_folder()).as_posix()}"
    except (ValueError, OSError, RuntimeError):  # outside the folder, a name that the system refuses, a circle of links
        return shorten(str(path))


@dataclass(frozen=True)
class Location:
    """Where a value stands: the file or command-line option, and the path of keys inside it.

    ``Location("grids/demo.yaml") / "blocks" / 0 / "shots"`` prints as ``grids/demo.yaml: blocks[0].shots``.
    """

    file: str
    path: str = ""

    @classmethod
    def of(cls, path: Path) -> Location:
        """Return the top level of a file."""
        return cls(display_path(path))

    def __truediv__(self, key: str | int) -> Location:
        """Return the location of a key or list index below this one."""
        if isinstance(key, int):
            return Location(self.file, f"{self.path}[{key}]")
        return Location(self.file, f"{self.path}.{key}" if self.path else key)

    def __str__(self) -> str:
        return f"{self.file}: {shorten(self.path)}" if self.path else self.file

    def error(self, what: str, hint: str = "") -> UserError:
        """Return an error that says what is wrong at this location."""
        return UserError(what, where=str(self), hint=hint)

    def unknown_name(self, kind: str, name: object, known: Iterable[str]) -> UserError:
        """Return an error for a name at this location that does not exist; it lists the nearest names that do."""
        return unknown_name(kind, name, known, where=str(self))
