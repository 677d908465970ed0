"""The artifacts and backbones that a process has loaded.

Loading a backbone or opening a dataset's images takes longer than many a cell. Cells arrive sorted, so it is enough to
keep the last few of each.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bolt.freed_memory import return_freed_memory
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.artifacts.stored_backbone import frozen_tower_address, read_backbone
from orchestrator.catalog import Catalog, DatasetEntry, backbone_ref, dataset_ref, load_catalog
from orchestrator.catalog.backbone_entry import swap_activation
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.core.settings import RunSettings
from orchestrator.store import Artifact, Store
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone

Value = TypeVar("Value")
Loaded = TypeVar("Loaded", covariant=True)

KEPT_MANIFESTS = 256


class Loadable(Protocol[Loaded]):
    """The part of a kind of artifact that loading needs, see :class:`orchestrator.artifacts.spec.ArtifactSpec`."""

    @property
    def kept(self) -> int: ...

    @property
    def address(self) -> str: ...

    def load(self, artifact: Artifact, device: str) -> Loaded: ...

    def __hash__(self) -> int: ...


class LoadedArtifacts:
    """The artifacts and backbones of one store that this process has loaded, and what is needed to load more.

    Attributes:
        store, data_root, catalog: where artifacts, image folders and entries come from.
        device: the torch device that this process computes on.
    """

    def __init__(self, settings: RunSettings) -> None:
        import torch

        self.settings = settings
        self.store = Store(settings.store_url)
        self.data_root = settings.data_folder
        self.device = settings.device or best_device()
        self.catalog: Catalog = load_catalog(settings.catalog_files)
        torch.set_num_threads(settings.threads)
        self._checked: set[DatasetRef] = set()
        self._values: dict[object, OrderedDict[Hashable, Any]] = defaultdict(OrderedDict)

    def artifact(self, address: str) -> Artifact:
        """A built artifact: its files and the facts noted with it. Raises ``FileNotFoundError`` if it is not built."""

        def find() -> Artifact:
            if found := self.store.artifact(address):
                return found
            raise FileNotFoundError(f"{address} is not built in {self.store.url}")

        return self.cached(Artifact, address, find, keep=KEPT_MANIFESTS)

    def get(self, spec: Loadable[Value]) -> Value:
        """A built artifact's content, loaded now or before. Raises ``FileNotFoundError`` if it is not built."""
        return self.cached(type(spec), spec, lambda: spec.load(self.artifact(spec.address), self.device), spec.kept)

    def backbone(self, ref: BackboneRef) -> Backbone:
        """The frozen backbone on this process's device, with the activation and precision of ``ref``.

        Its image tower is read from the store, if an intact ``FrozenTower`` is there; otherwise open_clip loads it. The
        last one is kept, for all number formats. Raises ``UserError`` if its catalog entry changed since the grid
        was read, or if the device cannot compute in that number format.
        """
        from bolt.clip.precision import UnsupportedPrecision

        stored = replace(ref, precision=None)

        def load() -> Backbone:
            entry = self.catalog.backbone(ref.name)
            for swapped, variant in ((False, entry), (True, swap_activation(entry))):
                if backbone_ref(variant) == stored:
                    tower = frozen_tower_address(stored)
                    if self.store.is_intact(tower):
                        return read_backbone(variant, self.artifact(tower), self.device)
                    found = load_backbone(variant, self.device, swapped=swapped, keep_text=False)
                    return_freed_memory()  # of the checkpoint
                    return found
            raise UserError(f"backbone {ref.name} changed since the grid was read", hint="run the same command again")

        backbone = self.cached(BackboneRef, stored, load, keep=1)
        try:
            return backbone.at(ref.precision)
        except UnsupportedPrecision as error:
            raise UserError(str(error), where="precision") from None

    def take_backbone(self, ref: BackboneRef) -> Backbone:
        """The backbone, for a caller that changes its tower in place. Everything loaded is forgotten with it.

        Other values may share the tower's tensors. Raises what :meth:`backbone` raises.
        """
        backbone = self.backbone(ref)
        self._values.clear()
        return backbone

    def cached(self, kind: object, key: Hashable, make: Callable[[], Value], keep: int) -> Value:
        """The value that ``make`` gave for this key, or gives now. Of each kind the last used ``keep`` values stay."""
        values = self._values[kind]
        if key in values:
            values.move_to_end(key)
            found: Value = values[key]
            return found
        while values and len(values) >= keep:
            values.popitem(last=False)  # before the new one is made: there may be no memory for both
        made = make()
        if keep:
            values[key] = made
        return made

    def image_size(self, ref: BackboneRef) -> int:
        """Side of the images that the backbone takes, in pixels."""
        return self.catalog.backbone(ref.name).image_size

    def dataset_entry(self, ref: DatasetRef) -> DatasetEntry:
        """The catalog entry of a dataset. Raises ``UserError`` if the dataset changed since the grid was read."""
        entry = self.catalog.dataset(ref.name)
        if ref not in self._checked and dataset_ref(entry, self.data_root) != ref:
            raise UserError(f"dataset {ref.name} changed since the grid was read", hint="run the same command again")
        self._checked.add(ref)  # a folder's identity lists all its files: one check per process is enough
        return entry


def loaded_artifacts(settings: RunSettings) -> LoadedArtifacts:
    """What this process has loaded with these settings.

    Of the last two settings everything is kept: a process with a GPU builds some kinds of artifacts without it. If one
    of the user's catalog files changed, everything is loaded again.
    """
    versions = tuple(_version(Path(file)) for file in settings.catalog_files)
    return _loaded(replace(settings, device=settings.device or best_device()), versions)


def forget_loaded() -> None:
    """Drop everything that this process has loaded."""
    _loaded.cache_clear()


@lru_cache(maxsize=2)
def _loaded(settings: RunSettings, versions: tuple[tuple[int, int] | None, ...]) -> LoadedArtifacts:
    return LoadedArtifacts(settings)


def _version(file: Path) -> tuple[int, int] | None:
    """The time of change and the size of a file, ``None`` if there is none: loading the catalog says so."""
    with suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_size
    return None


def best_device() -> str:
    """``cuda`` where PyTorch finds a GPU, otherwise ``cpu``."""
    import torch  # here: `sources list` imports this module for the addresses of artifacts only

    return "cuda" if torch.cuda.is_available() else "cpu"
