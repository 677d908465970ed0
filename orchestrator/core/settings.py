"""Settings of a run that change no measured number: paths, device, threads, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunSettings:
    """Paths, device and limits of a run. Never part of a cell's identity.

    Attributes:
        store_url: root of the store.
        data_root: folder that holds the user's image folders, if any.
        threads: CPU threads of torch; recorded in every manifest, because they change the rounding of sums.
        device: ``cpu``, ``cuda``, or ``None`` for the best available.
        catalog_files: the user's own catalog files.
        snapshot_seconds: seconds between two snapshots of a training that makes an artifact. A shorter training
            saves none and starts again from its beginning.
        gpu_share: the share of its GPU's memory that this process may use, 1 for all of it.
    """

    store_url: str
    data_root: str | None = None
    threads: int = 1
    device: str | None = None
    catalog_files: tuple[str, ...] = ()
    snapshot_seconds: float = 60.0
    gpu_share: float = 1.0

    @property
    def data_folder(self) -> Path | None:
        """The data root as a path."""
        return Path(self.data_root) if self.data_root else None

    @property
    def data_options(self) -> tuple[str, ...]:
        """The options that a command about these datasets needs: ``--catalog`` and ``--data-root``."""
        catalogs = (word for file in self.catalog_files for word in ("--catalog", file))
        return (*catalogs, *(("--data-root", self.data_root) if self.data_root else ()))
