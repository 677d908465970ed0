"""The schema of ``bolt.yaml``, with errors that name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from orchestrator.catalog.location import Location
from orchestrator.catalog.validation import StrictModel, validated
from orchestrator.catalog.yaml_files import read_mapping

Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: value if isinstance(value, list) else (value,))]

Text = Annotated[str, Field(min_length=1)]


class ProjectFile(StrictModel):
    """The fields of :class:`~orchestrator.cli.project.Project`, as the file gives them."""

    catalog: Names = ()
    data_root: Text | None = None
    store: Text | None = None


def checked_fields(path: Path) -> dict[str, Any]:
    """The fields of a project file. Raises ``UserError`` for a field that is unknown or wrong."""
    return dict(validated(ProjectFile, read_mapping(path), Location.of(path)))
