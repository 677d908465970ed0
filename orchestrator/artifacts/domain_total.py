"""Kind ``DomainTotal``: the sum of the task vectors of a domain's sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open

from bolt.clip.tensor_files import save_tensors
from bolt.spectral.task_vector_sum import add_task_vector
from orchestrator.artifacts.adopted_source import Source
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.spec import ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.store import Builder
from orchestrator.util.identity import encode


@dataclass(frozen=True)
class DomainTotal(ArtifactSpec):
    """The float64 sum of all task vectors of a domain.

    Every mean that leaves some sources out is this sum less theirs, so no cell has to read all sources.
    """

    kind = "spectra"
    title = "domain totals"
    shrink_hint = "fewer backbones or domains"

    sources: tuple[Source, ...]

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.sources[0].backbone.name, "total", len(self.sources)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "DomainTotal",
            "version": self.version,
            "backbone": encode(self.sources[0].backbone),
            "sources": self._refs,
        }

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return self.sources

    @property
    def _refs(self) -> list[list[str]]:
        return [[source.ref.dataset, source.ref.digest] for source in self.sources]

    def size_bytes(self, catalog: Catalog) -> int:
        return 8 * catalog.backbone(self.sources[0].backbone.name).parameters

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Add the task vectors tensor by tensor into ``total.safetensors``, without rounding."""
        backbone = self.sources[0].backbone
        pretrained = loaded.backbone(backbone).tower.state_dict_open_clip()
        totals = {
            name: torch.zeros_like(tensor, dtype=torch.float64, device="cpu") for name, tensor in pretrained.items()
        }
        for source in self.sources:
            with safe_open(str(loaded.get(source)), "pt") as file:
                for name, total in totals.items():
                    add_task_vector(total, file.get_tensor(name) - pretrained[name].cpu())
        save_tensors(totals, builder.folder / "total.safetensors")
        builder.meta.update(backbone=backbone.digest, sources=self._refs)
