"""Singular directions of the task vectors of source models, and the reader of sources.

A task vector is a fine-tuned tower minus the pre-trained tower. The kind of artifact is ``SourceDirections``. Methods
read sources through :class:`SourceSet`.

Shape legend: m, n rows and columns of a weight matrix, k directions.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import matrix_names
from bolt.spectral.bases import Basis, pretrained_basis
from bolt.spectral.directions import Directions, top_directions
from bolt.spectral.sources import PooledBasis, Sources
from bolt.spectral.task_vector_sum import add_task_vector, leave_out_mean
from orchestrator.artifacts.source_model import Source, source_address
from orchestrator.artifacts.spec import FLOAT_BYTES, TOWER_FILE, ArtifactCache, ArtifactSpec, round_up
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef, SourceRef
from orchestrator.store import Artifact, Builder, Store
from orchestrator.util.identity import address, slug

Value = TypeVar("Value")

DIRECTIONS_STEP = 16
"""The stored number of directions is a multiple of this, so that grids with different ``top_k`` share artifacts."""

KEPT_PRETRAINED_BASES = 98
"""Number of bases of pre-trained matrices that a process keeps. The bases that were used last are kept.

A method goes through all matrices in the same order. If fewer bases were kept than there are matrices, each basis would
be removed before it is used again. 98 bases are the leading and the trailing singular directions of ViT-B's 49
matrices. Of ViT-L/14's 97 matrices, only the leading or only the trailing directions can be kept.
"""

DIRECTIONS_FILE = "directions.safetensors"


@dataclass(frozen=True)
class SourceDirections(ArtifactSpec):
    """The leading ``top_k`` singular directions of every weight matrix of one source's task vector.

    The build would be faster on a GPU. It runs on the CPU, because it runs only once per source, while cells need the
    GPU.
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
        # The sizes of a block's matrices, in multiples of the width: (3, 1) for query-key-value, (1, 1) for the
        # attention output, (4, 1) and (1, 4) for the MLP. A direction has one number for each row and each column.
        block = (3 + 1) + (1 + 1) + 2 * (4 + 1)
        rows_and_columns = (backbone.layers * block + 1) * backbone.width + backbone.embed_dim
        return FLOAT_BYTES * self.top_k * rows_and_columns

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Decompose every matrix into ``<matrix>.u`` (m, k), ``<matrix>.s`` (k,) and ``<matrix>.v`` (n, k)."""
        pretrained = cache.backbone(self.source.backbone).tower.state_dict_open_clip()
        tensors: dict[str, Tensor] = {}
        with safe_open(str(cache.get(self.source)), "pt") as file:
            for name in matrix_names(pretrained):
                delta = file.get_tensor(name) - pretrained[name].cpu()
                found = top_directions(delta.to(cache.device), self.top_k)
                tensors |= {f"{name}.{part}": getattr(found, part).float() for part in ("u", "s", "v")}
        save_tensors(tensors, builder.folder / DIRECTIONS_FILE)
        builder.meta.update(source=self.source.ref.dataset, top_k=self.top_k)


def directions_address(backbone: str, source: SourceRef, top_k: int) -> str:
    """Return the store address of an artifact: the ``top_k`` leading singular directions of a source's task vector."""
    identity = (SourceDirections.version, source, top_k)
    return f"{SourceDirections.kind}/{address(backbone, source.dataset, f'top{top_k}', of=identity)}"


def stored_directions(store: Store, backbone: str, sources: Iterable[SourceRef]) -> list[str]:
    """Return the addresses of the stored directions of sources, for one backbone."""
    prefixes = tuple(f"{SourceDirections.kind}/{slug(backbone)}.{slug(source.dataset)}." for source in sources)
    return [found for found in store.addresses(SourceDirections.kind) if found.startswith(prefixes)]


class SourceSet(Sources):
    """The sources of a cell, in the cell's order, read from the store.

    The parameter ``cache`` holds the artifacts. The attribute ``cache`` is the dictionary that :meth:`cached` uses.
    """

    def __init__(self, cache: ArtifactCache, backbone: BackboneRef, sources: Sequence[SourceRef]) -> None:
        self._loaded = cache
        self._backbone = backbone
        pretrained = cache.backbone(backbone).tower.state_dict_open_clip()
        self._pretrained = {name: tensor.cpu() for name, tensor in pretrained.items()}
        self._sources = tuple(sources)
        self._bases: dict[tuple[str, int], PooledBasis] = {}
        self.cache: dict[Hashable, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.dataset for source in self._sources)

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        found = []
        for source in self._sources:
            with safe_open(self._stored_directions(source, top_k).path(DIRECTIONS_FILE), "pt") as file:
                u, s, v = (file.get_tensor(f"{matrix}.{part}") for part in ("u", "s", "v"))
            found.append(Directions(u[:, :top_k].contiguous(), s[:top_k].contiguous(), v[:, :top_k].contiguous()))
        return found

    def mean_task_vector(self, matrix: str) -> Tensor:
        total = torch.zeros_like(self._pretrained[matrix], dtype=torch.float64)
        for source in self._sources:
            add_task_vector(total, self._delta(source, matrix))
        return leave_out_mean(total, [], len(self._sources))

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        ref = next(ref for ref in self._sources if ref.dataset == source)
        return {name: self._delta(ref, name) for name in self._pretrained}

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        """Return the basis and pooled coefficients of one matrix, cached for later cells of the same sources."""
        if (matrix, top_k) not in self._bases:
            self._bases[matrix, top_k] = super().pooled_basis(matrix, top_k)
        found = self._bases[matrix, top_k]
        return replace(found, pooled=found.pooled.clone())  # a method may train it in place

    def pretrained_basis(self, matrix: str, weight: Tensor, width: int, trailing: bool) -> Basis:
        """Return the leading (or trailing) ``width`` singular directions of ``weight``, a matrix of the frozen tower.

        They are cached for all cells of the backbone under the name ``matrix``.
        """
        key = self._backbone, matrix, width, trailing
        make = partial(pretrained_basis, weight, width, trailing)
        return self._loaded.cached(pretrained_basis, key, make, KEPT_PRETRAINED_BASES)

    def file_digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each source's ``tower.safetensors``, from its manifest."""
        artifacts = [self._loaded.artifact(source_address(self._backbone.name, source)) for source in self._sources]
        return tuple(artifact.files[TOWER_FILE][2] for artifact in artifacts)

    def cached(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return ``make()``, cached under ``key`` until a cell of another backbone, method or set of sources comes."""
        if key not in self.cache:
            self.cache[key] = make()
        value: Value = self.cache[key]
        return value

    def _delta(self, source: SourceRef, name: str) -> Tensor:
        artifact = self._loaded.artifact(source_address(self._backbone.name, source))
        with safe_open(artifact.path(TOWER_FILE), "pt") as file:
            tuned: Tensor = file.get_tensor(name)
        return tuned - self._pretrained[name]

    def _stored_directions(self, source: SourceRef, top_k: int) -> Artifact:
        """Return the smallest stored artifact with at least ``top_k`` directions of a source.

        Some methods need more directions for a wide matrix than for a narrow one. Artifacts are built with enough for
        the widest matrix, so for a narrow matrix the artifact can have more than ``top_k`` directions.
        """
        fewest = round_up(top_k, DIRECTIONS_STEP)
        widest = max(tensor.shape[-1] for tensor in self._pretrained.values() if tensor.ndim)
        for size in range(fewest, round_up(widest, DIRECTIONS_STEP) + 1, DIRECTIONS_STEP):
            with suppress(FileNotFoundError):
                return self._loaded.artifact(directions_address(self._backbone.name, source, size))
        return self._loaded.artifact(directions_address(self._backbone.name, source, fewest))
