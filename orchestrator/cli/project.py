"""``bolt.yaml`` in the working folder: the catalog files, data root and store that every command takes by default.

``data add`` writes it. An option or an environment variable of a command wins over it. ``project_file.py`` checks its
fields, and is imported only where there is such a file: every command passes here, and pydantic takes 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from orchestrator.util.atomic_files import replacing

PROJECT_FILE = Path("bolt.yaml")
DEFAULT_CATALOG = Path("catalog.yaml")
"""The catalog file that ``data add`` writes where neither an option nor ``bolt.yaml`` names one."""

_HEADER = "# What every command takes by default; an option of a command wins. Written by `data add`.\n"


@dataclass(frozen=True)
class Project:
    """The fields of ``bolt.yaml``.

    Attributes:
        catalog: catalog files of the user; paths are relative to the file's folder.
        data_root: the folder of the datasets.
        store: where artifacts and results are kept.
    """

    catalog: tuple[str, ...] = ()
    data_root: str | None = None
    store: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that have a value, in the form of the file."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items() if value}


def read_project() -> Project:
    """The project file of the working folder; empty if there is none. Raises ``UserError`` for a wrong one."""
    if not PROJECT_FILE.is_file():
        return Project()
    from orchestrator.cli.project_file import checked_fields

    return Project(**checked_fields(PROJECT_FILE))


def remember(catalog: Sequence[Path], data_root: Path) -> Project:
    """Note the catalog files and the data root in ``bolt.yaml``, unless it has a data root already.

    Returns the project as it is now. A folder that cannot be written to has no project file.
    """
    import yaml

    before = read_project()
    files = tuple(dict.fromkeys((*before.catalog, *map(_relative, catalog))))
    project = replace(before, catalog=files, data_root=before.data_root or _relative(data_root))
    try:
        if project != before:
            with replacing(PROJECT_FILE) as temporary:
                temporary.write_text(_HEADER + yaml.safe_dump(project.fields, sort_keys=False), encoding="utf-8")
    except OSError:
        return before
    return project


def _relative(path: Path) -> str:
    """A path below the working folder relative to it, any other one absolute."""
    absolute = path.expanduser().absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def is_same(first: str | None, second: Path) -> bool:
    """Whether a path of the project file is the given one."""
    return first is not None and Path(first).absolute() == second.absolute()


def has_all(names: Sequence[str], files: Sequence[Path]) -> bool:
    """Whether the project file names all of these catalog files."""
    return all(any(is_same(name, file) for name in names) for file in files)


def set_defaults(context: typer.Context) -> None:
    """Make the fields of ``bolt.yaml`` the defaults of every command's options of the same names."""
    context.default_map = _for_commands(context.command, read_project().fields)


def _for_commands(command: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as defaults of all commands below ``command``, in click's nested form."""
    return {
        name: _for_commands(inner, fields) if hasattr(inner, "commands") else fields
        for name, inner in command.commands.items()
    }
