"""What cells need: the kinds of artifacts, their addresses, and which follow from which.

Each kind is a frozen dataclass of exactly what its content depends on, so its fingerprint is its address. Raising a
kind's ``version`` renames it, and what was built before is not used any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bolt.methods import Method
from bolt.training.meta import MetaRecipe
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, SourceRef
from orchestrator.core.recipes import SourceRecipe, adopted_source
from orchestrator.tracks import TRACKS
from orchestrator.util.identity import address, encode

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
    """A decoded split: ``test`` at the tower's resolution; ``train`` (for sources) and ``test_whole`` (the test split
    again, for random crops at test time) near their own size."""

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
    """The images of the largest support, at their own size; every smaller k is part of it, every backbone reads it.

    Attributes:
        draw, pool: as in :func:`bolt.task.support.draw_support`; a ``fresh`` draw holds the images of its own k alone.
        split: the split they are drawn from.
    """

    version: ClassVar[int] = 2
    kind: ClassVar[str] = "images"

    dataset: DatasetRef
    seed: int
    shots: int
    draw: Literal["nested", "fresh"] = "nested"
    pool: Literal["train", "less_validation"] = "train"
    split: Literal["train", "test"] = "train"

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.dataset.name, "support", f"s{self.seed}"


@dataclass(frozen=True)
class Views:
    """Which family of augmented views: crops of half the image or more, or ``light`` ones; mirrored or never."""

    light: bool = False
    mirror: bool = True


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

    version: ClassVar[int] = 2
    kind: ClassVar[str] = "features"

    backbone: BackboneRef
    support: SupportImages
    image_size: int
    family: Views
    views: int

    @property
    def dataset(self) -> DatasetRef:
        return self.support.dataset

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "support", f"s{self.support.seed}"

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (self.support,)


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
    def ref(self) -> SourceRef:
        """What cells call it."""
        return SourceRef(self.dataset.name, self.digest)

    @property
    def address(self) -> str:
        return source_address(self.backbone.name, self.ref)

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (
            Images(self.dataset, "train", self.image_size),
            Head(self.backbone, self.dataset, self.image_size),
            TestFeatures(self.backbone, self.dataset, self.image_size),
        )


@dataclass(frozen=True)
class AdoptedSource(Need):
    """An image tower from a checkpoint of others: ``tower.safetensors`` as of a :class:`SourceModel`.

    Attributes:
        dataset: the name of what it was fine-tuned on, of which no image is read.
        sha256: of the checkpoint, see :func:`orchestrator.catalog.checkpoints.checkpoint_digest`.
    """

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "sources"

    backbone: BackboneRef
    dataset: str
    sha256: str

    @property
    def ref(self) -> SourceRef:
        """What cells call it."""
        return adopted_source(self.backbone, self.dataset, self.sha256)

    @property
    def address(self) -> str:
        return source_address(self.backbone.name, self.ref)


Source = SourceModel | AdoptedSource
"""An image tower of one dataset, in a file ``tower.safetensors`` by open_clip's visual names."""


@dataclass(frozen=True)
class SourceDirections(Need):
    """The leading singular directions of every weight matrix of one source's task vector."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "spectra"

    source: Source
    top_k: int

    @property
    def address(self) -> str:
        return directions_address(self.source.backbone.name, self.source.ref, self.top_k)

    @property
    def inputs(self) -> tuple[Need, ...]:
        return (self.source,)


@dataclass(frozen=True)
class DomainTotal(Need):
    """The float64 sum of all task vectors of a domain, from which every held-out mean is one subtraction away."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "spectra"

    sources: tuple[Source, ...]

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.sources[0].backbone.name, "total", len(self.sources)

    @property
    def identity(self) -> dict[str, Any]:
        refs = [[source.ref.dataset, source.ref.digest] for source in self.sources]
        return {
            "kind": "DomainTotal",
            "version": self.version,
            "backbone": encode(self.sources[0].backbone),
            "sources": refs,
        }

    @property
    def inputs(self) -> tuple[Need, ...]:
        return self.sources


@dataclass(frozen=True)
class MetaStart(Need):
    """An image tower meta-learned on the training splits of some datasets."""

    version: ClassVar[int] = 1
    kind: ClassVar[str] = "sources"

    backbone: BackboneRef
    datasets: tuple[DatasetRef, ...]
    image_size: int
    recipe: MetaRecipe

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, "meta", self.recipe.variant, len(self.datasets)

    @property
    def inputs(self) -> tuple[Need, ...]:
        read = [(Images(d, "train", self.image_size), Head(self.backbone, d, self.image_size)) for d in self.datasets]
        return tuple(need for pair in read for need in pair)


def source_address(backbone: str, source: SourceRef) -> str:
    """Where a source model is, from what a cell knows of it: a source's digest covers its backbone and recipe."""
    return f"sources/{address(backbone, source.dataset, of=(SourceModel.version, source))}"


def directions_address(backbone: str, source: SourceRef, top_k: int) -> str:
    """Where a source's directions are, from what a cell knows of it."""
    return f"spectra/{address(backbone, source.dataset, f'top{top_k}', of=(SourceDirections.version, source, top_k))}"


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
    draw = cell.protocol.support_draw
    shots = tier(cell.shots, SHOTS_TIER) if draw == "nested" else cell.shots
    split = TRACKS[cell.track].support_split(cell.protocol)
    return SupportImages(cell.dataset, cell.seed, shots, draw, cell.protocol.support_pool, split)


def support_features(cell: Cell, image_size: int, family: Views, views: int) -> SupportFeatures:
    """The support-feature artifact a cell reads: shared by all k up to the tier and by all methods."""
    return SupportFeatures(cell.backbone, support_images(cell), image_size, family, tier(views, VIEWS_TIER))


def view_family(cell: Cell, method: Method, mirrorable: bool) -> Views:
    """The augmented views a method sees of a dataset, of which the catalog says whether mirroring keeps its classes."""
    return Views(
        light=method.baseline_crop and cell.protocol.baseline_crop == "light",
        mirror=mirrorable or cell.protocol.flips == "always",
    )


def meta_start(cell: Cell, image_size: int, recipe: MetaRecipe) -> MetaStart:
    """The meta-learned start of a cell, whose sources are datasets."""
    datasets = tuple(DatasetRef(source.dataset, source.digest) for source in cell.sources)
    return MetaStart(cell.backbone, datasets, image_size, recipe)
