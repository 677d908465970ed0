"""``bolt.yaml`` in the working folder: the default catalog files, data root and store of every command.

``data add`` writes the file. An option or an environment variable of a command overrides a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BeforeValidator, Field

from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import StrictModel, validated
from orchestrator.catalog.yaml_files import dump_yaml, read_mapping
from orchestrator.cli.options import PROJECT_FILE, at_home
from orchestrator.util.atomic_files import replace_text, writing
from orchestrator.util.locks import changing

if TYPE_CHECKING:
    from orchestrator.catalog import DatasetEntry
    from orchestrator.datasets.adding import Added

_HEADER = "# Defaults of every command; an option of a command overrides them. Written by `data add`.\n"
_GRID_HEADER = (
    "# Written by `data add`; edit it as you like. `tiny-clip` was trained on drawings only: for results on\n"
    "# photographs, write backbones: [vit-b-32]. Methods that need source models take the other datasets of the\n"
    "# domain, and are left out where there is none; sources: {domain: aerial} takes those of another domain.\n"
)

Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: value if isinstance(value, list) else (value,))]
Text = Annotated[str, Field(min_length=1)]


class Project(StrictModel):
    """The fields of ``bolt.yaml``.

    Attributes:
        catalog: the user's catalog files, as paths relative to the folder of ``bolt.yaml``.
        data_root: the folder of the datasets.
        store: the folder or URL of artifacts and results.
    """

    catalog: Names = ()
    data_root: Text | None = None
    store: Text | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that have a value, as they are written into ``bolt.yaml``."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def missing_options(self, catalog: Sequence[Path], data_root: Path) -> list[str | Path]:
        """Return the options that a command needs in addition to ``bolt.yaml`` to use the given files and folder."""
        from orchestrator.datasets.listing import catalog_options

        named = {Path(file).absolute() for file in self.catalog}
        options = [] if named.issuperset(path.absolute() for path in catalog) else catalog_options(catalog)
        if self.data_root is None or Path(self.data_root).absolute() != data_root.absolute():
            options += ["--data-root", data_root]
        return options


def read_project() -> Project:
    """Return the fields of ``bolt.yaml``; empty if it does not exist. Raises ``UserError`` if the file is invalid."""
    if not PROJECT_FILE.is_file():
        return Project()
    return validated(Project, read_mapping(PROJECT_FILE), Location.of(PROJECT_FILE))


def remember(catalog: Sequence[Path], data_root: Path) -> Project:
    """Add the catalog files to ``bolt.yaml``, and the data root if the file names none; return the project.

    If the working folder cannot be written to, the project is returned unchanged.
    """
    with changing(PROJECT_FILE):
        before = read_project()
        files = tuple(dict.fromkeys((*before.catalog, *map(_relative, catalog))))
        project = before.model_copy(update={"catalog": files, "data_root": before.data_root or _relative(data_root)})
        try:
            if project != before:
                replace_text(PROJECT_FILE, _HEADER + dump_yaml(project.fields))
        except OSError:
            return before
    return project


def write_grid_file(added: Added, catalog_file: Path) -> tuple[Path, bool]:
    """Write the grid file of an added dataset into the folder of the catalog file. Return the path of the grid file.

    Also return whether an existing file was kept. It is kept unless ``data add`` wrote it and nobody has edited it.
    Raises ``UserError`` if the file cannot be written.
    """
    name = added.entry.name
    path = catalog_file.with_name(f"{name}.yaml")
    if path.absolute() == catalog_file.absolute():
        path = catalog_file.with_name(f"{name}-grid.yaml")
    with writing("the grid file", str(path)):
        text = _grid_text(added.entry)
        written = {text, _grid_text(added.replaced)} if added.replaced else {text}
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") not in written:
            return path, True
        replace_text(path, text)
    return path, False


def _grid_text(entry: DatasetEntry) -> str:
    """Return the text of a dataset's grid file: the grid ``own`` with values of k up to ``entry.max_shots``."""
    from orchestrator.datasets.verify import USUAL_SHOTS

    grid = read_mapping(grids_folder() / "own.yaml")
    block = grid["blocks"][0] | {"datasets": [entry.name]}
    if entry.max_shots < max(USUAL_SHOTS):
        block["shots"] = [k for k in USUAL_SHOTS if k <= entry.max_shots]
    fields = grid | {"title": entry.title, "description": f"Few-shot methods on {entry.title}.", "blocks": [block]}
    return _GRID_HEADER + dump_yaml(fields, None)


def _relative(path: Path) -> str:
    """Return a path below the working folder as a relative path, and any other path as an absolute path."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def set_defaults(context: typer.Context) -> None:
    """Make the fields of ``bolt.yaml`` the defaults of the options with the same names, for every command."""
    fields = read_project().fields
    paths = {key: at_home(value) if isinstance(value, str) else [*map(at_home, value)] for key, value in fields.items()}
    context.default_map = _for_commands(context.command, paths)


def _for_commands(command: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as defaults of all commands below ``command``, in click's nested form."""
    return {
        name: _for_commands(inner, fields) if hasattr(inner, "commands") else fields
        for name, inner in command.commands.items()
    }
