"""The staging area of a dataset that is being fetched, and the result of fetching it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class StagingArea:
    """The staging area of one dataset, ``ROOT/NAME.partial``.

    Attributes:
        folder: becomes ``ROOT/NAME`` when it is complete.
        downloads: complete downloaded files, kept until the dataset is complete.
        console: where progress is shown.
    """

    folder: Path
    downloads: Path
    console: Console

    def clear(self) -> None:
        """Empty the folder: an interruption may have left half a file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)


@dataclass(frozen=True)
class FetchResult:
    """The commit of the fetched repository, else ``None``; and name of each file -> its checksum, ``sha256:...``."""

    revision: str | None
    files: Mapping[str, str]
