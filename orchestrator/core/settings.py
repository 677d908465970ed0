"""Settings of a run that do not change a cell's identity: paths, device, threads, memory."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunSettings:
    """Paths, device and limits of a run. They are never part of a cell's identity.

    Attributes:
        store_url: root of the store.
        data_root: folder that holds the datasets' folders; ``None`` if no data root is given.
        threads: CPU threads of torch. Every manifest records them, because they change the rounding of sums.
        device: ``cpu``, ``cuda``, or ``None`` for the best available device.
        catalog_files: the user's own catalog files.
        snapshot_seconds: seconds between two snapshots of a training that makes an artifact. A shorter training has no
            snapshot, and starts from the beginning after an interruption.
        gpu_share: the share of the GPU's memory that this process may use; 1 for the whole memory.
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
        """The options ``--catalog`` and ``--data-root`` with which a printed command finds the same datasets."""
        catalogs = (word for file in self.catalog_files for word in ("--catalog", file))
        return (*catalogs, *(("--data-root", self.data_root) if self.data_root else ()))
