"""The identities of the datasets and backbones that a grid names, each computed once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bolt.protocol import Protocol
from orchestrator.catalog import Catalog, DatasetEntry, backbone_ref, dataset_ref
from orchestrator.catalog.load_backbone import swap_activation
from orchestrator.core.cell import BackboneRef, DatasetRef


class References:
    """References to catalog entries. A folder dataset's reference lists all its files, so each is kept."""

    def __init__(self, catalog: Catalog, data_root: Path | None) -> None:
        self._catalog, self._data_root = catalog, data_root
        self._datasets: dict[str, DatasetRef] = {}
        self._backbone = cache(self._make_backbone)

    def dataset(self, entry: DatasetEntry) -> DatasetRef:
        """The reference of a dataset."""
        if entry.name not in self._datasets:
            self._datasets[entry.name] = dataset_ref(entry, self._data_root)
        return self._datasets[entry.name]

    def backbone(self, name: str, protocol: Protocol) -> BackboneRef:
        """The reference of a backbone with the activation that the protocol asks for."""
        return self._backbone(name, protocol.activation)

    def _make_backbone(self, name: str, activation: str) -> BackboneRef:
        entry = self._catalog.backbones[name]
        return backbone_ref(entry if activation == "as_trained" else swap_activation(entry))
