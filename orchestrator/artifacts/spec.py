"""What a kind of artifact is: identity, address, inputs, size, cost, how it is built and how it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from bolt.freed_memory import return_freed_memory
from orchestrator.artifacts.host_work import HostWork
from orchestrator.artifacts.loaded import LoadedArtifacts, loaded_artifacts
from orchestrator.catalog import Catalog
from orchestrator.core.settings import RunSettings
from orchestrator.store import Artifact, Builder
from orchestrator.util.identity import address, encode

TRAINING_FACTOR = 3.0
"""Operations of a forward and backward pass that trains all weights of a network, as a multiple of a forward pass."""

FLOAT_BYTES = 4
"""Bytes of a float32 number."""


@dataclass(frozen=True)
class ArtifactSpec(ABC):
    """One artifact: what it is made from, where it is stored, and how it is built and read.

    Each subclass is one kind of artifact. Its name and its fields are exactly what the artifact's content depends on.
    Their fingerprint is part of the address, so equal specs share one artifact and different specs never do.

    Planning imports all kinds and builds nothing. A kind therefore imports slow modules, such as those that import
    torchvision (2 s), inside ``build``.

    Attributes:
        version: raised when ``build`` changes its output. Artifacts of an older version are then not used any more.
        kind: the folder in the store.
        gpu_share: the share of a GPU that a build asks for, or the most if its memory is estimated. A kind with 0 is
            built on the CPU on every machine.
        kept: how many loaded artifacts of this kind a process keeps in memory.
    """

    version: ClassVar[int] = 1
    kind: ClassVar[str]
    gpu_share: ClassVar[float] = 0.0
    kept: ClassVar[int] = 0

    @property
    @abstractmethod
    def title(self) -> str:
        """What several artifacts of this kind are called, for example ``test features``."""

    @property
    @abstractmethod
    def shrink_hint(self) -> str:
        """Advice for a full disk: what makes a grid need fewer or smaller artifacts of this kind."""

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        """The readable part of the address; the name of the kind by default."""
        return (type(self).__name__,)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything the content depends on, as plain JSON types."""
        return {"kind": type(self).__name__, "version": self.version, **encode(self)}

    @property
    def address(self) -> str:
        """The path in the store: ``<kind>/<readable-name>--<8hex>``."""
        return f"{self.kind}/{address(*self.name_parts, of=self.identity)}"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        """The artifacts that ``build`` reads. They are built first."""
        return ()

    @abstractmethod
    def size_bytes(self, catalog: Catalog) -> int:
        """Estimated size in the store, in bytes."""

    def gflops(self, catalog: Catalog) -> float:
        """Estimated 10^9 operations that a build takes in the backbone; 0 if it does not run the backbone."""
        return 0.0

    def host_work(self, catalog: Catalog) -> HostWork:
        """Estimated seconds that a build keeps a CPU core busy beside a GPU; next to none by default."""
        return HostWork()

    def gpu_mib(self, catalog: Catalog) -> float | None:
        """Estimated GPU memory of a build in MiB, with CUDA's context; ``None`` if it asks for ``gpu_share``."""
        return None

    @abstractmethod
    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Write the artifact's files into ``builder.folder``, and facts about it into ``builder.meta``."""

    def load(self, artifact: Artifact, device: str) -> Any:
        """Read the built artifact, which a kind may put on ``device``; by default, ``artifact`` itself is returned.

        :meth:`LoadedArtifacts.get` returns what this returns.
        """
        return artifact


def build(spec: ArtifactSpec, settings: RunSettings) -> str:
    """Build an artifact unless the settings' store has it; returns its address. Its inputs must be built.

    Raises what :meth:`ArtifactSpec.build` raises. No half-built artifact is left behind.
    """
    loaded = loaded_artifacts(settings)
    if loaded.store.artifact(spec.address, spec.identity) is None:
        with loaded.store.building(spec.address, spec.identity) as builder:
            spec.build(loaded, builder)
        return_freed_memory()  # or this process's next build would start beside it
    return spec.address


def with_inputs(specs: Iterable[ArtifactSpec]) -> list[ArtifactSpec]:
    """``specs`` and everything they are built from, each once, inputs before the artifacts that read them."""
    ordered: dict[ArtifactSpec, None] = {}

    def visit(spec: ArtifactSpec) -> None:
        if spec in ordered:
            return
        for upstream in spec.inputs:
            visit(upstream)
        ordered[spec] = None

    for spec in specs:
        visit(spec)
    return list(ordered)


def round_up(wanted: int, step: int) -> int:
    """``wanted`` rounded up to a multiple of ``step``."""
    return -(-wanted // step) * step
