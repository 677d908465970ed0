"""Lists the artifacts that a cell reads, and all artifacts that must be built for several cells."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from bolt.clip.augment import SUPPORT_CROP
from bolt.methods import METHODS, Method, UnknownName
from bolt.task.support import NESTED_DRAWS
from bolt.training.meta import MetaRecipe
from orchestrator.artifacts.features import SupportFeatures, TestFeatures, TestViewFeatures, ValidationFeatures
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.source_model import MetaStart, Source, source_address
from orchestrator.artifacts.spec import ArtifactSpec, round_up, with_inputs
from orchestrator.artifacts.spectra import DIRECTIONS_STEP, SourceDirections
from orchestrator.artifacts.support_images import SupportImages
from orchestrator.artifacts.views import Views
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.datasets.images import SHORT_SIDE_CAP
from orchestrator.tracks import TRACKS, configured
from orchestrator.util.errors import UserError

COOP_SMALLEST_CROP = 0.08
"""The least share of an image's area that a training crop of CoOp keeps. torchvision's random crop has this default."""

SHOTS_STEP = 16
VIEWS_STEP = 20
TEST_VIEWS_STEP = 16
"""Steps for three numbers: the shots, the views per support image, and the views per test image. The number that a cell
needs is rounded up to a multiple of the step, so that more cells share an artifact."""

FEW_SHOTS = (1, 4)
"""Support features hold 1, 4 or all stored images per class: the smallest of these numbers that is enough for a cell's
k. If support features always held all images, a grid of one shot would encode sixteen times too many.

The number depends on the cell's k alone, and not on the grid's other values of k. So a cell reads features with the
same bits in every grid. If other images were encoded in the same batch, the last bits could differ.
"""


@dataclass(frozen=True)
class CellArtifacts:
    """The artifacts that one cell reads, and the augmentation of the views that its method is given.

    The target is the dataset that the method adapts to.

    Attributes:
        head: the zero-shot head of all classes of the target.
        test_features: features of the test images of each dataset that the cell is scored on, and of the target if the
            protocol lets test labels choose settings.
        validation_images: the target's training split, if the protocol scores on a tenth of it.
        unscored: the support, if it is drawn from the test split. Its images are not scored.
        whole_test_images: the target's test images, for a method that crops them at random and trains on the crops.
            Large images are scaled down.
        own_heads: the heads of the other datasets that the cell is scored on, if each has its own class names.
        validation_features: features of the images on which the protocol lets the method choose settings.
        view_features: features of views of the target's test images, if the method reads them.
    """

    head: Head
    test_features: tuple[TestFeatures, ...]
    validation_images: Images | None
    unscored: SupportImages | None
    meta_start: MetaStart | None
    whole_test_images: Images | None
    support_images: SupportImages | None
    support_features: SupportFeatures | None
    views: Views
    sources: tuple[SourceRef, ...]
    own_heads: tuple[Head, ...] = ()
    validation_features: ValidationFeatures | None = None
    view_features: TestViewFeatures | None = None

    def features_of(self, dataset: DatasetRef) -> TestFeatures:
        """Return the artifact with the test features of a scored dataset."""
        return next(features for features in self.test_features if features.dataset == dataset)

    @property
    def specs(self) -> tuple[ArtifactSpec, ...]:
        """The artifacts that the cell reads, without the sources and what is computed from them."""
        images = self.validation_images, self.whole_test_images, self.support_images
        optional = self.meta_start, *images, self.support_features, self.validation_features, self.view_features
        return self.head, *self.own_heads, *self.test_features, *(spec for spec in optional if spec is not None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of :attr:`specs` and of the source models."""
        sources = (source_address(self.head.backbone.name, source) for source in self.sources)
        return *(spec.address for spec in self.specs), *sources


def configured_method(cell: Cell) -> tuple[Method, Any]:
    """Return a cell's method, and its settings on the cell's track. Raises ``UserError`` if they are unknown here."""
    try:
        return configured(cell.method, cell.track)
    except UnknownName as error:
        hint = "install the package that adds it, or the version of this project that measured the cell"
        raise UserError(f"{error.where} has no {error.name!r}", where=cell.id, hint=hint) from None


class _Reads(NamedTuple):
    """What a method reads with its settings on a track. Methods that read the same share their artifacts.

    Attributes:
        crops: whether the method crops whole test images at random.
        feature_views, test_views: how many views of the images are stored as features.
    """

    uses_support: bool
    uses_validation: bool
    crops: bool
    baseline_crop: bool
    meta_recipe: MetaRecipe | None
    feature_views: int | None
    test_views: int


@lru_cache(maxsize=1024)
def _reads(ref: MethodRef, track: str) -> _Reads:
    (method, settings), labelled = configured(ref, track), TRACKS[track].gives_support
    views = method.support_feature_views(settings)
    return _Reads(
        uses_support=method.uses_support,
        uses_validation=method.uses_validation and labelled,
        crops=method.uses_support and method.changes_tower and not labelled,
        baseline_crop=method.baseline_crop,
        meta_recipe=method.meta_recipe(settings) if method.meta_recipe else None,
        feature_views=None if views is None else round_up(views, VIEWS_STEP),
        test_views=0 if labelled else round_up(method.test_views(settings), TEST_VIEWS_STEP),
    )


def cell_artifacts(cell: Cell, catalog: Catalog) -> CellArtifacts:
    """Return the artifacts that a cell reads. Nothing is loaded, and nothing has to be built."""
    reads = _reads(cell.method, cell.track)
    track, size = TRACKS[cell.track], catalog.backbone(cell.backbone.name).input_size
    scored_on = dict.fromkeys((*cell.evaluate_on, *([cell.dataset] if cell.selects_on_test else [])))
    views = Views(
        light=reads.baseline_crop and cell.protocol.baseline_crop == "light",
        mirror=catalog.dataset(cell.dataset.name).mirrorable or cell.protocol.flips == "always",
        smallest=SUPPORT_CROP.smallest if cell.protocol.support_crop == "half" else COOP_SMALLEST_CROP,
    )
    meta_start = None
    if reads.meta_recipe is not None:  # such a method meta-learns on the datasets of the cell's sources
        datasets = tuple(DatasetRef(source.dataset, source.digest) for source in cell.sources)
        meta_start = MetaStart(cell.backbone, datasets, size, reads.meta_recipe)
    support = features = validation_features = view_features = None
    if reads.uses_support and track.gives_support:
        support = support_images(cell, catalog)
        if reads.feature_views is not None:
            shots = _feature_shots(cell, reads)
            features = SupportFeatures(cell.backbone, support, size, views, reads.feature_views, shots)
    if reads.uses_validation and cell.protocol.validation != "none":
        validation_features = ValidationFeatures(cell.backbone, cell.dataset, size)
    if reads.test_views:
        crops = replace(views, light=False, smallest=COOP_SMALLEST_CROP)
        view_features = TestViewFeatures(cell.backbone, cell.dataset, size, cell.seed, crops, reads.test_views)
    with_own_words = [dataset for dataset in cell.evaluate_on if track.own_words and dataset != cell.dataset]
    drawn_from_test = reads.uses_support and track.support_split(cell.protocol) == "test"
    return CellArtifacts(
        head=Head(cell.backbone, cell.dataset, size),
        test_features=tuple(TestFeatures(cell.backbone, dataset, size) for dataset in scored_on),
        validation_images=Images(cell.dataset, "train", size) if scored_on_validation(cell) else None,
        unscored=support_images(cell, catalog) if drawn_from_test else None,
        meta_start=meta_start,
        whole_test_images=Images(cell.dataset, "test_whole", size) if reads.crops else None,
        support_images=support,
        support_features=features,
        views=views,
        sources=cell.sources if METHODS[cell.method.name].uses_source_models else (),
        own_heads=tuple(Head(cell.backbone, dataset, size) for dataset in with_own_words),
        validation_features=validation_features,
        view_features=view_features,
    )


def support_images(cell: Cell, catalog: Catalog) -> SupportImages:
    """Return the support images of a cell.

    Cells with other methods, and with other backbones of the same image size, share these images. In a nested draw, the
    images for a smaller k are among those for a larger k, so cells of a smaller k share them too. The short side of the
    stored images is capped, unless the catalog says that the dataset's images do not exceed the cap.
    """
    track, shots = TRACKS[cell.track], _stored_shots(cell)
    draw, split = track.support_draw(cell.protocol), track.support_split(cell.protocol)
    cap = SHORT_SIDE_CAP * catalog.backbone(cell.backbone.name).image_size
    side = catalog.dataset(cell.dataset.name).image_side
    short_side = None if side is not None and side <= cap else cap
    pool = cell.protocol.support_pool
    return SupportImages(cell.dataset, cell.seed, shots, draw, pool, split, short_side, cell.listed)


def _stored_shots(cell: Cell) -> int:
    """Return the number of stored images per class of the artifact from which a cell takes its support."""
    nested = TRACKS[cell.track].support_draw(cell.protocol) in NESTED_DRAWS
    return round_up(cell.shots, SHOTS_STEP) if nested else cell.shots


def _feature_shots(cell: Cell, reads: _Reads) -> int | None:
    """Return the number of images per class in a cell's support features.

    ``None`` if the features are of all support images, or if the method reads no support features.
    """
    if reads.feature_views is None:
        return None
    return next((shots for shots in FEW_SHOTS if cell.shots <= shots < _stored_shots(cell)), None)


def scored_on_validation(cell: Cell) -> bool:
    """Return whether the protocol scores the cell on a tenth of its training split instead of the test split."""
    return cell.protocol.meta_scoring == "validation" and METHODS[cell.method.name].meta_recipe is not None


def required_artifacts(
    cells: Iterable[Cell], catalog: Catalog, sources: Mapping[SourceRef, Source]
) -> list[ArtifactSpec]:
    """Return every artifact that must be built for ``cells``, each once, inputs before the artifacts that read them.

    ``sources``: reference to a source model -> the source model, for all references in the grid.
    """
    direct: dict[ArtifactSpec, None] = {}
    wanted, seen = list(cells), set[Hashable]()
    for cell in wanted:
        # Cells with equal keys read the same artifacts. Objects that cells share, such as the tuple of sources, are
        # compared by ``id``, because hashing a cell's sources takes longer than finding its artifacts.
        reads = _reads(cell.method, cell.track)
        shared = map(id, (cell.protocol, cell.backbone, cell.dataset, cell.evaluate_on, cell.listed))
        learned_on = id(cell.sources) if reads.meta_recipe else 0
        key = cell.track, _stored_shots(cell), _feature_shots(cell, reads), cell.seed, reads, learned_on, *shared
        if key not in seen:
            seen.add(key)
            direct.update(dict.fromkeys(cell_artifacts(cell, catalog).specs))
        key = cell.track, *map(id, (cell.backbone, cell.sources, cell.method))
        if not (cell.sources and METHODS[cell.method.name].uses_source_models) or key in seen:
            continue
        seen.add(key)
        method, settings = configured_method(cell)
        width = catalog.backbone(cell.backbone.name).width
        top_k = round_up(method.source_directions(settings, width, len(cell.sources)), DIRECTIONS_STEP)
        for model in (sources[source] for source in cell.sources):
            direct[SourceDirections(model, top_k) if top_k else model] = None
    return with_inputs(direct)
