"""Kinds ``SourceDirections`` and ``DomainTotal``: what bases and means of a cell's sources are made of.

Shape legend: m, n rows and columns of a weight matrix, k directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open

from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import matrix_names
from bolt.spectral.directions import top_directions
from bolt.spectral.task_vector_sum import add_task_vector
from orchestrator.artifacts.host_work import HostWork, decomposition
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.source_model import Source
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.core.cell import SourceRef
from orchestrator.store import Builder
from orchestrator.util.identity import address, encode

DIRECTIONS_STEP = 16
"""The stored number of directions is a multiple of this, so that grids with different ``top_k`` share artifacts."""


@dataclass(frozen=True)
class SourceDirections(ArtifactSpec):
    """The leading ``top_k`` singular directions of every weight matrix of one source's task vector.

    The build would be faster on a GPU. It runs on the CPU because it runs once per source, at a time when cells need
    the GPU more.
    """

    kind = "spectra"
    title = "source directions"
    shrink_hint = "fewer backbones or sources, or a smaller top_k"

    source: Source
    top_k: int

    @property
    def address(self) -> str:
        return directions_address(self.source.backbone.name, self.source.ref, self.top_k)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (self.source,)

    def size_bytes(self, catalog: Catalog) -> int:
        backbone = catalog.backbone(self.source.backbone.name)
        width = backbone.width
        block = (3 * width + width) + (width + width) + 2 * (4 * width + width)
        rows_and_columns = backbone.layers * block + width + backbone.embed_dim
        return FLOAT_BYTES * self.top_k * rows_and_columns

    def host_work(self, catalog: Catalog) -> HostWork:
        return decomposition(catalog.backbone(self.source.backbone.name).parameters)

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Decompose every matrix into ``<matrix>.u`` (m, k), ``<matrix>.s`` (k,) and ``<matrix>.v`` (n, k)."""
        pretrained = loaded.backbone(self.source.backbone).tower.state_dict_open_clip()
        tensors = {}
        with safe_open(str(loaded.get(self.source)), "pt") as file:
            for name in matrix_names(pretrained):
                delta = file.get_tensor(name) - pretrained[name].cpu()
                found = top_directions(delta.to(loaded.device), self.top_k)
                for part in ("u", "s", "v"):
                    tensors[f"{name}.{part}"] = getattr(found, part).float()
        save_tensors(tensors, builder.folder / "directions.safetensors")
        builder.meta.update(source=self.source.ref.dataset, top_k=self.top_k)


def directions_address(backbone: str, source: SourceRef, top_k: int) -> str:
    """The address of the directions of a cell's source."""
    identity = (SourceDirections.version, source, top_k)
    return f"{SourceDirections.kind}/{address(backbone, source.dataset, f'top{top_k}', of=identity)}"


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
