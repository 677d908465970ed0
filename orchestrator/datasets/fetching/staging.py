"""Where a dataset is put together, and what a filler says it did."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class StagingArea:
    """The place of one dataset under way, ``ROOT/NAME.partial``.

    Attributes:
        folder: what becomes ``ROOT/NAME`` once it is whole.
        downloads: whole files as they came; kept until the dataset is, so that nothing is fetched twice.
        console: where progress is shown.
    """

    folder: Path
    downloads: Path
    console: Console

    def clear(self) -> None:
        """Throw away what was unpacked before: an interruption may have left half a file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.downloads.mkdir(parents=True, exist_ok=True)

    def say(self, line: str) -> None:
        """One line of what happens."""
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class FetchResult:
    """What a filler did.

    Attributes:
        revision: the commit, where there is such a thing.
        files: name of each file that was fetched -> its checksum, ``sha256:...``.
    """

    revision: str | None
    files: Mapping[str, str]
