"""What one process keeps at hand between the things it works on.

Reading a backbone, mapping a dataset's images or orthogonalising a basis costs more than many a cell. Cells arrive
sorted, so keeping the last few of each is enough to pay once.

Shape legend: N support images, C classes, D embedding width, S image side, V views.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.augment import SOURCE_CROP, SUPPORT_CROP, Crop, augmented_view, evaluation_view
from bolt.methods import METHODS
from bolt.seeds import torch_generator
from bolt.task.support import batch_order, draw_support
from bolt.task.task import EVALUATION_VIEW, Support, Unlabelled
from orchestrator.artifacts import kinds as artifacts
from orchestrator.artifacts.requirements import direct_inputs
from orchestrator.artifacts.stored_sources import StoredSources
from orchestrator.catalog import BackboneEntry, Catalog, DatasetEntry, backbone_ref, dataset_ref, load_catalog
from orchestrator.catalog.load_backbone import load_backbone, swap_activation
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.images import Images, read_images
from orchestrator.store import Artifact, Store
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bolt.clip.backbone import Backbone
    from bolt.methods import Method

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The last few values made, by key."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made now if it is not at hand; the longest unused one makes room."""
        if key not in self._values:
            while len(self._values) >= self._capacity:
                self._values.popitem(last=False)
            self._values[key] = make()
        self._values.move_to_end(key)
        return self._values[key]


class LoadedArtifacts:
    """Backbones, images, heads, features and sources of one store, each opened once."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.store = Store(settings.store_url)
        self.data_root = Path(settings.data_root) if settings.data_root else None
        self.device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.catalog: Catalog = load_catalog(settings.catalog_files)
        torch.set_num_threads(settings.threads)
        self._checked: set[DatasetRef] = set()
        self._backbones: Recent[Backbone] = Recent(1)
        self._opened: Recent[Artifact] = Recent(256)
        self._images: Recent[Images] = Recent(16)
        self._tensors: Recent[Tensor] = Recent(16)
        self._sources: Recent[StoredSources] = Recent(2)
        self._pictures: Recent[SupportPictures] = Recent(8)
        self._support: Recent[dict[str, Tensor]] = Recent(4)

    # -- catalog entries -----------------------------------------------------------------------------------------

    def dataset_entry(self, ref: DatasetRef) -> DatasetEntry:
        """The catalog entry behind a reference. Raises ``UserError`` if it changed since the grid was read."""
        entry = self.catalog.dataset(ref.name)
        if ref not in self._checked and dataset_ref(entry, self.data_root) != ref:
            raise UserError(f"dataset {ref.name} changed since the grid was read", hint="run the same command again")
        self._checked.add(ref)  # a folder's identity is a listing of all its files: once per process is enough
        return entry

    def backbone_entry(self, ref: BackboneRef) -> BackboneEntry:
        """The catalog entry behind a reference, with the activation that the reference means.

        Raises ``UserError`` if the entry changed since the grid was read.
        """
        entry = self.catalog.backbone(ref.name)
        for meant in (entry, swap_activation(entry)):
            if backbone_ref(meant) == ref:
                return meant
        raise UserError(f"backbone {ref.name} changed since the grid was read", hint="run the same command again")

    def image_size(self, ref: BackboneRef) -> int:
        """Side of the images the backbone takes, in pixels."""
        return self.catalog.backbone(ref.name).image_size

    def backbone(self, ref: BackboneRef) -> Backbone:
        """The frozen backbone on this process's device."""

        def load() -> Backbone:
            entry = self.backbone_entry(ref)
            return load_backbone(entry, self.device, swapped=entry != self.catalog.backbone(ref.name))

        return self._backbones.get(ref, load)

    # -- artifacts -----------------------------------------------------------------------------------------------

    def open(self, address: str) -> Artifact:
        """A finished artifact. Raises ``FileNotFoundError`` if it is not built."""

        def find() -> Artifact:
            found = self.store.artifact(address)
            if found is None:
                raise FileNotFoundError(f"{address} is not built in {self.store.url}")
            return found

        return self._opened.get(address, find)

    def images(self, dataset: DatasetRef, split: str, image_size: int) -> Images:
        """A decoded split, memory-mapped."""
        spec = artifacts.Images(dataset, split, image_size)
        return self._images.get(spec, lambda: read_images(self.open(spec.address).path))

    def class_names(self, dataset: DatasetRef, image_size: int) -> tuple[str, ...]:
        """The dataset's class words in label order."""
        return tuple(self.open(artifacts.Images(dataset, "test", image_size).address).meta["class_names"])

    def head(self, backbone: BackboneRef, dataset: DatasetRef) -> Tensor:
        """The zero-shot head, (C, D), on the device."""
        spec = artifacts.Head(backbone, dataset, self.image_size(backbone))

        def load() -> Tensor:
            return load_file(self.open(spec.address).path("head.safetensors"))["head"].to(self.device)

        return self._tensors.get(spec, load)

    def test_features(self, backbone: BackboneRef, dataset: DatasetRef) -> Tensor:
        """The frozen tower's raw features of the test split, (N, D), on the CPU."""
        spec = artifacts.TestFeatures(backbone, dataset, self.image_size(backbone))
        return self._tensors.get(
            spec, lambda: load_file(self.open(spec.address).path("features.safetensors"))["features"]
        )

    def sources(self, cell: Cell) -> StoredSources:
        """The cell's sources: the other datasets' models, the target's own left out."""

        def make() -> StoredSources:
            pretrained = self.backbone(cell.backbone).tower.state_dict_open_clip()
            return StoredSources(self.store, cell.backbone, pretrained, cell.sources)

        return self._sources.get((cell.backbone, cell.sources), make)

    def addresses_read(self, cell: Cell) -> tuple[str, ...]:
        """Addresses of the artifacts a cell's number was made from."""
        return tuple(spec.address for spec in direct_inputs(cell, self.catalog)) + tuple(
            artifacts.source_address(cell.backbone.name, source)
            for source in cell.sources
            if METHODS[cell.method.name].meta_recipe is None
        )

    def labels_among(self, target: DatasetRef, dataset: DatasetRef, image_size: int) -> Tensor:
        """Test labels of ``dataset`` as class numbers of ``target``, (N,).

        They are the dataset's own when it is the target. A variant of the target (ImageNet-A of ImageNet) has its
        classes found by their words. Raises ``UserError`` for a class the target does not have.
        """
        labels = torch.from_numpy(self.images(dataset, "test", image_size).labels)
        if dataset == target:
            return labels
        position = {name: index for index, name in enumerate(self.class_names(target, image_size))}
        names = self.class_names(dataset, image_size)
        unknown = [name for name in names if name not in position]
        if unknown:
            raise UserError(f"{dataset.name} has classes that {target.name} does not have: {', '.join(unknown[:5])}")
        return torch.tensor([position[name] for name in names])[labels]

    def no_support(self) -> Support:
        """The support of a method that looks at none: empty."""
        empty = torch.empty(0, dtype=torch.int64)
        return Support(empty, empty, pixels=nothing, features=nothing, order=nothing)

    def support_pictures(self, spec: artifacts.SupportImages) -> SupportPictures:
        """The images of the largest support of a dataset and seed, memory-mapped."""

        def load() -> SupportPictures:
            path = self.open(spec.address).path
            return SupportPictures(
                dataset=spec.dataset.name,
                seed=spec.seed,
                images=read_images(path),
                indices=np.load(path("indices.npy")),
                labels_of_split=np.load(path("labels_of_split.npy")),
            )

        return self._pictures.get(spec, load)

    def support(self, cell: Cell, method: Method, views: int | None) -> Support:
        """The cell's support, with frozen features of its un-augmented and first ``views`` augmented views.

        Raises ``bolt.task.support.TooFewImages`` when a class has too few images and the protocol refuses that.
        """
        size = self.image_size(cell.backbone)
        family = self._views(cell, method)
        pictures = self.support_pictures(artifacts.support_images(cell))
        indices = draw_support(
            pictures.labels_of_split,
            cell.shots,
            dataset=cell.dataset.name,
            seed=cell.seed,
            short_classes=cell.protocol.short_classes,
            class_count=len(self.class_names(cell.dataset, size)),
            draw=cell.protocol.support_draw,
            pool=cell.protocol.support_pool,
        )
        return Support(
            labels_N=torch.from_numpy(pictures.labels_of_split[indices]).to(self.device),
            indices_N=torch.from_numpy(indices),
            pixels=lambda view, rows: pictures.pixels(view, indices[rows.cpu().numpy()], size, family),
            features=self._support_features(cell, indices, family, views),
            order=lambda epoch: batch_order(len(indices), dataset=cell.dataset.name, seed=cell.seed, epoch=epoch),
        )

    def unlabelled(self, cell: Cell, method: Method) -> Unlabelled:
        """The target's test images without their labels; augmented views are crops of images near their own size."""
        name, seed, size = cell.dataset.name, cell.seed, self.image_size(cell.backbone)
        crop = crop_of(self._views(cell, method))
        seen = self.images(cell.dataset, "test", size)
        whole = self.images(cell.dataset, "test_whole", size)

        def pixels(view: int, rows: Tensor) -> Tensor:
            if view == EVALUATION_VIEW:
                return torch.stack([seen.image(row) for row in rows.tolist()])
            return torch.stack(
                [augmented_view(whole.image(row), size, name, seed, view, row, crop) for row in rows.tolist()]
            )

        return Unlabelled(
            size=len(seen),
            pixels=pixels,
            features=lambda: self.test_features(cell.backbone, cell.dataset).to(self.device),
            order=lambda stream, lap, count: torch.randperm(
                count, generator=torch_generator("stream", name, seed, stream, lap, count)
            ),
        )

    def meta_start(self, spec: artifacts.MetaStart) -> dict[str, Tensor]:
        """A meta-learned image tower by open_clip names, on the device."""
        tensors = load_file(self.open(spec.address).path("tower.safetensors"))
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _views(self, cell: Cell, method: Method) -> artifacts.Views:
        return artifacts.view_family(cell, method, self.catalog.dataset(cell.dataset.name).mirrorable)

    def _support_features(
        self, cell: Cell, indices: NDArray[np.int64], family: artifacts.Views, views: int | None
    ) -> Callable[[int], Tensor]:
        if views is None:
            return nothing
        spec = artifacts.support_features(cell, self.image_size(cell.backbone), family, views)

        def load() -> dict[str, Tensor]:
            return load_file(self.open(spec.address).path("features.safetensors"))

        def features(view: int) -> Tensor:
            stored = self._support.get(spec, load)
            rows = torch.searchsorted(stored["indices_N"], torch.from_numpy(indices))
            return stored["features_VND"][view, rows].to(self.device)

        return features


def crop_of(family: artifacts.Views) -> Crop:
    """The random crops of a family of views."""
    crop = SOURCE_CROP if family.light else SUPPORT_CROP
    return crop if family.mirror else replace(crop, flip=0.0)


@dataclass(frozen=True)
class SupportPictures:
    """The images of the largest support of one dataset and seed.

    Attributes:
        images: at their own size, in the order of ``indices``.
        indices: their positions in the split they are drawn from, ascending, (M,).
        labels_of_split: class of every image of that split.
    """

    dataset: str
    seed: int
    images: Images
    indices: NDArray[np.int64]
    labels_of_split: NDArray[np.int64]

    def pixels(self, view: int, indices: NDArray[np.int64], size: int, family: artifacts.Views) -> Tensor:
        """One view of the images at those positions of their split: uint8 (len(indices), 3, size, size)."""
        crop = crop_of(family)
        rows = np.searchsorted(self.indices, indices).tolist()
        if view == EVALUATION_VIEW:
            return torch.stack([evaluation_view(self.images.image(row), size) for row in rows])
        return torch.stack(
            [
                augmented_view(self.images.image(row), size, self.dataset, self.seed, view, index, crop)
                for row, index in zip(rows, indices.tolist(), strict=True)
            ]
        )


def nothing(view: int, rows: Tensor | None = None) -> Tensor:
    """What a method finds where it said it would not look."""
    raise ValueError("the method's registration says that it does not read this")


@lru_cache(maxsize=1)
def loaded_artifacts(settings: RunSettings) -> LoadedArtifacts:
    """The cache of this process; asking with other settings replaces it."""
    return LoadedArtifacts(settings)
