"""What cells spec: the kinds of artifacts, their addresses, and which follow from which.

Each kind is a frozen dataclass of exactly what its content depends on, so its fingerprint is its address. Raising a
kind's ``version`` renames it, and what was built before is not used any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bolt.methods import Method
from bolt.training.meta_recipe import MetaRecipe
from orchestrator.catalog import BackboneEntry, Catalog
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, SourceRef
from orchestrator.core.recipes import SourceRecipe, adopted_source
from orchestrator.datasets.images import SHORT_SIDE_CAP
from orchestrator.tracks import TRACKS
from orchestrator.util.identity import address, encode

DIRECTIONS_TIER = 16
"""Directions are stored in multiples of this, so that grids with different ranks share them."""

VIEWS_TIER = 20
SHOTS_TIER = 16

TRAINING_FACTOR = 3.0
"""Operations of a forward and backward pass of a network, as a multiple of a forward pass."""

TYPICAL_SIDE = 430
"""Side in pixels that is assumed for the images of a dataset whose catalog entry gives none: a square of it has as
many pixels as a photograph of 500 x 375."""


def tier(wanted: int, step: int) -> int:
    """``wanted`` rounded up to a multiple of ``step``."""
    return -(-wanted // step) * step


@dataclass(frozen=True)
class ArtifactSpec:
    """Describes one artifact: what it is made from, where it is stored, and what it takes to build it.

    Each subclass is one kind of artifact. Its fields are exactly what the artifact's content depends on, so their
    fingerprint is the artifact's address.

    Attributes:
        version: raised when the builder changes its output; artifacts of the old version are then not used any more.
        kind: the folder in the store.
        gpu_share: the share of a GPU that building it asks for; 0 builds it on the CPU, wherever it is built.
    """

    version: ClassVar[int] = 1
    kind: ClassVar[str]
    gpu_share: ClassVar[float] = 0.0

    @property
    def title(self) -> str:
        """What several artifacts of this kind are called, e.g. ``test features``."""
        raise NotImplementedError

    @property
    def shrink_hint(self) -> str:
        """What makes a grid need fewer or smaller artifacts of this kind."""
        raise NotImplementedError

    def size_bytes(self, catalog: Catalog) -> int:
        """Estimated size in the store, in bytes."""
        raise NotImplementedError

    def gflops(self, catalog: Catalog) -> float:
        """Estimated 10^9 operations that building it takes in the backbone; 0 where the backbone is not run."""
        return 0.0

    @property
    def identity(self) -> dict[str, Any]:
        """Everything the artifact's content depends on, as plain JSON types."""
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
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        """The artifacts its builder reads."""
        return ()


@dataclass(frozen=True)
class Images(ArtifactSpec):
    """A decoded split: ``test`` at the tower's resolution; ``train`` (for sources) and ``test_whole`` (the test split
    again, for random crops at test time) near their own size."""

    kind = "images"

    dataset: DatasetRef
    split: str
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.dataset.name, self.split, self.image_size

    @property
    def title(self) -> str:
        titles = {
            "train": "decoded training splits",
            "test": "decoded test splits",
            "test_whole": "test splits near their own size",
        }
        return titles[self.split]

    @property
    def shrink_hint(self) -> str:
        hints = {
            "train": "fewer sources, or adopted checkpoints, which need no images",
            "test": "fewer datasets, or backbones of one image size",
            "test_whole": "fewer datasets of the tta track",
        }
        return hints[self.split]

    def size_bytes(self, catalog: Catalog) -> int:
        entry = catalog.dataset(self.dataset.name)
        count = entry.sizes.train if self.split == "train" else entry.sizes.test
        side = min(entry.image_side or TYPICAL_SIDE, SHORT_SIDE_CAP * self.image_size)
        return count * 3 * (self.image_size if self.split == "test" else side) ** 2


@dataclass(frozen=True)
class SupportImages(ArtifactSpec):
    """The images of the largest support, at their own size; every smaller k is part of it, every backbone reads it.

    Attributes:
        draw, pool: as in :func:`bolt.task.support.draw_support`; a ``fresh`` draw holds the images of its own k alone.
        split: the split they are drawn from.
    """

    version = 2
    kind = "images"
    title = "support images"
    shrink_hint = "fewer seeds or datasets, or fewer shots than 16 at a time"

    dataset: DatasetRef
    seed: int
    shots: int
    draw: Literal["nested", "fresh"] = "nested"
    pool: Literal["train", "less_validation"] = "train"
    split: Literal["train", "test"] = "train"

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.dataset.name, "support", f"s{self.seed}"

    def size_bytes(self, catalog: Catalog) -> int:
        entry = catalog.dataset(self.dataset.name)
        return entry.classes * self.shots * 3 * (entry.image_side or TYPICAL_SIDE) ** 2


@dataclass(frozen=True)
class Views:
    """Which family of augmented views: crops of half the image or more, or ``light`` ones; mirrored or never."""

    light: bool = False
    mirror: bool = True


@dataclass(frozen=True)
class Head(ArtifactSpec):
    """The zero-shot head: one unit text embedding per class."""

    kind = "features"
    title = "zero-shot heads"
    shrink_hint = "fewer backbones or datasets"
    gpu_share = 0.25

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "head"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (Images(self.dataset, "test", self.image_size),)

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * catalog.dataset(self.dataset.name).classes * catalog.backbone(self.backbone.name).embed_dim


@dataclass(frozen=True)
class TestFeatures(ArtifactSpec):
    """The frozen tower's features of the test split."""

    kind = "features"
    title = "test features"
    shrink_hint = "fewer backbones or datasets"
    gpu_share = 0.5

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "test"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (Images(self.dataset, "test", self.image_size),)

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * catalog.dataset(self.dataset.name).sizes.test * catalog.backbone(self.backbone.name).embed_dim

    def gflops(self, catalog: Catalog) -> float:
        images = catalog.dataset(self.dataset.name).sizes.test
        return images * catalog.backbone(self.backbone.name).gflops_per_image


@dataclass(frozen=True)
class SupportFeatures(ArtifactSpec):
    """The frozen tower's features of the largest support and its augmented views; every smaller k is part of it."""

    version = 2
    kind = "features"
    title = "support features"
    shrink_hint = "fewer seeds or backbones, or fewer epochs of methods on frozen features"
    gpu_share = 0.5

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
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (self.support,)

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * self._rows(catalog) * catalog.backbone(self.backbone.name).embed_dim

    def gflops(self, catalog: Catalog) -> float:
        return self._rows(catalog) * catalog.backbone(self.backbone.name).gflops_per_image

    def _rows(self, catalog: Catalog) -> int:
        """How many images are encoded: each support image once per view, the un-augmented view included."""
        return catalog.dataset(self.dataset.name).classes * self.support.shots * (self.views + 1)


@dataclass(frozen=True)
class SourceModel(ArtifactSpec):
    """An image tower fine-tuned on one dataset."""

    kind = "sources"
    title = "source models"
    shrink_hint = "fewer backbones or sources"
    gpu_share = 1.0

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
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (
            Images(self.dataset, "train", self.image_size),
            Head(self.backbone, self.dataset, self.image_size),
            TestFeatures(self.backbone, self.dataset, self.image_size),
        )

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * catalog.backbone(self.backbone.name).parameters

    def gflops(self, catalog: Catalog) -> float:
        sizes = catalog.dataset(self.dataset.name).sizes
        images = TRAINING_FACTOR * sizes.train * (self.recipe.epochs or 1) + sizes.test
        return images * catalog.backbone(self.backbone.name).gflops_per_image


@dataclass(frozen=True)
class AdoptedSource(ArtifactSpec):
    """An image tower from a checkpoint of others: ``tower.safetensors`` as of a :class:`SourceModel`.

    Attributes:
        dataset: the name of what it was fine-tuned on, of which no image is read.
        sha256: of the checkpoint, see :func:`orchestrator.catalog.checkpoint_entry.checkpoint_digest`.
    """

    kind = "sources"
    title = "adopted checkpoints"
    shrink_hint = "fewer backbones or sources"
    gpu_share = 0.5

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

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * catalog.backbone(self.backbone.name).parameters


Source = SourceModel | AdoptedSource
"""An image tower of one dataset, in a file ``tower.safetensors`` by open_clip's visual names."""


@dataclass(frozen=True)
class SourceDirections(ArtifactSpec):
    """The leading singular directions of every weight matrix of one source's task vector."""

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
        return 4 * self.top_k * _matrix_sides(catalog.backbone(self.source.backbone.name))


@dataclass(frozen=True)
class DomainTotal(ArtifactSpec):
    """The float64 sum of all task vectors of a domain, from which every held-out mean is one subtraction away."""

    kind = "spectra"
    title = "domain totals"
    shrink_hint = "fewer backbones or domains"

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
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return self.sources

    def size_bytes(self, catalog: Catalog) -> int:
        return 8 * catalog.backbone(self.sources[0].backbone.name).parameters


@dataclass(frozen=True)
class MetaStart(ArtifactSpec):
    """An image tower meta-learned on the training splits of some datasets."""

    kind = "sources"
    title = "meta-learned starts"
    shrink_hint = "fewer backbones or datasets of the meta track"
    gpu_share = 1.0

    backbone: BackboneRef
    datasets: tuple[DatasetRef, ...]
    image_size: int
    recipe: MetaRecipe

    @property
    def words(self) -> tuple[str | int, ...]:
        return self.backbone.name, "meta", self.recipe.variant, len(self.datasets)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        read = [(Images(d, "train", self.image_size), Head(self.backbone, d, self.image_size)) for d in self.datasets]
        return tuple(spec for pair in read for spec in pair)

    def size_bytes(self, catalog: Catalog) -> int:
        return 4 * catalog.backbone(self.backbone.name).parameters

    def gflops(self, catalog: Catalog) -> float:
        recipe = self.recipe
        images_per_task = recipe.support * recipe.inner_steps + recipe.query
        passes = 2 if recipe.variant == "maml" else 1
        images = TRAINING_FACTOR * passes * recipe.steps * recipe.tasks_per_step * images_per_task
        return images * catalog.backbone(self.backbone.name).gflops_per_image


def _matrix_sides(backbone: BackboneEntry) -> int:
    """Sum of rows and columns over all weight matrices of an image tower."""
    width = backbone.width
    block = (3 * width + width) + (width + width) + 2 * (4 * width + width)
    return backbone.layers * block + width + backbone.embed_dim


def source_address(backbone: str, source: SourceRef) -> str:
    """Where a source model is, from what a cell knows of it: a source's digest covers its backbone and recipe."""
    return f"sources/{address(backbone, source.dataset, of=(SourceModel.version, source))}"


def directions_address(backbone: str, source: SourceRef, top_k: int) -> str:
    """Where a source's directions are, from what a cell knows of it."""
    return f"spectra/{address(backbone, source.dataset, f'top{top_k}', of=(SourceDirections.version, source, top_k))}"


def closure(specs: Iterable[ArtifactSpec]) -> list[ArtifactSpec]:
    """All artifacts that ``needs`` follow from, each once, inputs before what reads them."""
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
