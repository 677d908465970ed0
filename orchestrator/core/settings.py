"""How to run: never what is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSettings:
    """Where things are and what to compute with. Never part of a cell's identity.

    Attributes:
        store_url: root of the store.
        data_root: folder that holds the user's image folders, if any.
        threads: CPU threads for the arithmetic; noted in every manifest, since sums depend on how they are split.
        device: ``cpu``, ``cuda``, or ``None`` for the best there is.
        catalog_files: the user's own catalog files.
        snapshot_seconds: between two snapshots of a training that makes an artifact; shorter ones are made anew.
        gpu_share: how much of its GPU's memory this process may take, 1 for all of it.
    """

    store_url: str
    data_root: str | None = None
    threads: int = 1
    device: str | None = None
    catalog_files: tuple[str, ...] = ()
    snapshot_seconds: float = 60.0
    gpu_share: float = 1.0
