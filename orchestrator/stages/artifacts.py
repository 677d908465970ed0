"""What cells need: the kinds of artifacts, their addresses, and which follow from which.

Each kind is a frozen dataclass of exactly what its content depends on, so its fingerprint is its address. Raising a
kind's ``version`` renames it, and what was built before is not used any more. Nothing heavy is imported here: a plan
walks this graph without touching torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestrator.cell import BackboneRef, Cell, DatasetRef, SourceRef
from orchestrator.identity import address, encode
from orchestrator.recipes import SourceRecipe

DIRECTIONS_TIER = 16
"""Directions are stored in multiples of this, so that grids with different ranks share them."""

VIEWS_TIER = 20
SHOTS_TIER = 16


def tier(wanted: int, step: int) -> int:
    """``wanted`` rounded up to a multiple of ``step``."""
    return -(-wanted // step) * step


@dataclass(frozen=True)
class Need:
    """One artifact that can be built. Sub-classes are its kinds."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = ""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything its content depends on, as plain JSON types."""
        return {"kind": type(self).__name__, "version": self.version, **encode(self)}

    @property
    def words(self) -> tuple[str | int, ...]:
        """The readable part of its address."""
        raise AttributeError(f"{type(self).__name__} has no name")

    @property
    def address(self) -> str:
        """``<kind>/<readable-name>--<8hex>`` in the store."""
        return f"{self.kind}/{address(*self.words, of=self.identity)}"

    @property
    def inputs(self) -> tuple[Need, ...]:
        """The artifacts its builder reads."""
        return ()


@dataclass(frozen=True)
class Images(Need):
    """A decoded split: the test split at the tower's resolution; the training split, for sources, near its own size."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "images"

    dataset: DatasetRef
    split: str
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.dataset.name, self.split, self.image_size


@dataclass(frozen=True)
class SupportImages(Need):
    """The images of the largest support, at their own size; every smaller k is part of it, every backbone reads it."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "images"

    dataset: DatasetRef
    seed: int
    shots: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.dataset.name, "support", f"s{self.seed}"


@dataclass(frozen=True)
class Head(Need):
    """The zero-shot head: one unit text embedding per class."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "features"

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "head"

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (Images(self.dataset, "test", self.image_size),)


@dataclass(frozen=True)
class TestFeatures(Need):
    """The frozen tower's features of the test split."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "features"

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "test"

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (Images(self.dataset, "test", self.image_size),)


@dataclass(frozen=True)
class SupportFeatures(Need):
    """The frozen tower's features of the largest support and its augmented views; every smaller k is part of it."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "features"

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int
    seed: int
    shots: int
    views: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "support", f"s{self.seed}"

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (SupportImages(self.dataset, self.seed, self.shots),)


@dataclass(frozen=True)
class SourceModel(Need):
    """An image tower fine-tuned on one dataset."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "sources"

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int
    recipe: SourceRecipe
    digest: str

    @property
    def address(self) -> str:
        return source_address(self.backbone, SourceRef(self.dataset.name, self.digest))

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (
            Images(self.dataset, "train", self.image_size),
            Head(self.backbone, self.dataset, self.image_size),
            TestFeatures(self.backbone, self.dataset, self.image_size),
        )


@dataclass(frozen=True)
class SourceDirections(Need):
    """The leading singular directions of every weight matrix of one source's task vector."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "spectra"

    source: SourceModel
    top_k: int

    @property
    def address(self) -> str:
        return directions_address(
            self.source.backbone, SourceRef(self.source.dataset.name, self.source.digest), self.top_k
        )

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (self.source,)


@dataclass(frozen=True)
class DomainTotal(Need):
    """The float64 sum of all task vectors of a domain, from which every held-out mean is one subtraction away."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "spectra"

    sources: tuple[SourceModel, ...]

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.sources[0].backbone.name, "total", len(self.sources)

    @property
    def identity(self) -> dict[str, Any]:
        refs = [[source.dataset.name, source.digest] for source in self.sources]
        return {
            "kind": "DomainTotal",
            "version": self.version,
            "backbone": encode(self.sources[0].backbone),
            "sources": refs,
        }

    @property
    def inputs(self) -> tuple[Need, ...]:
        return self.sources


def source_address(backbone: BackboneRef, source: SourceRef) -> str:
    """Where a source model is, from what a cell knows of it."""
    return f"sources/{address(backbone.name, source.dataset, of=(SourceModel.version, backbone, source))}"


def directions_address(backbone: BackboneRef, source: SourceRef, top_k: int) -> str:
    """Where a source's directions are, from what a cell knows of it."""
    of = (SourceDirections.version, backbone, source, top_k)
    return f"spectra/{address(backbone.name, source.dataset, f'top{top_k}', of=of)}"


def closure(needs: Iterable[Need]) -> list[Need]:
    """All artifacts that ``needs`` follow from, each once, inputs before what reads them."""
    ordered: dict[Need, None] = {}

    def visit(need: Need) -> None:
        if need in ordered:
            return
        for upstream in need.inputs:
            visit(upstream)
        ordered[need] = None

    for need in needs:
        visit(need)
    return list(ordered)


def support_images(cell: Cell) -> SupportImages:
    """The support images a cell reads: shared by all k up to the tier, by all methods and by all backbones."""
    return SupportImages(cell.dataset, cell.seed, tier(cell.shots, SHOTS_TIER))


def support_features(cell: Cell, image_size: int, views: int) -> SupportFeatures:
    """The support-feature artifact a cell reads: shared by all k up to the tier and by all methods."""
    return SupportFeatures(
        cell.backbone, cell.dataset, image_size, cell.seed, tier(cell.shots, SHOTS_TIER), tier(views, VIEWS_TIER)
    )
