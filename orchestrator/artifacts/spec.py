"""Defines a kind of artifact, builds artifacts, and caches the artifacts that a process has loaded.

Loading a backbone or opening a dataset's images takes longer than measuring many of the cells. Cells arrive sorted by
backbone and dataset, so it is enough that the cache keeps the few values of each kind that were used last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from bolt.clip.input_size import InputSize
from bolt.util.freed_memory import return_freed_memory
from orchestrator.artifacts.load_backbone import TextSide, load_backbone
from orchestrator.catalog import BackboneEntry, Catalog, DatasetEntry, backbone_ref, dataset_ref, load_catalog
from orchestrator.catalog.backbone_entry import swap_activation
from orchestrator.catalog.yaml_files import read_text
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.core.settings import RunSettings
from orchestrator.store import Artifact, Builder, Store
from orchestrator.util.errors import UserError, explained
from orchestrator.util.identity import address, encode

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone

Value = TypeVar("Value")
Loaded = TypeVar("Loaded", covariant=True)

CACHED_MANIFESTS = 256

TOWER_FILE = "tower.safetensors"
"""Name of the file with an image tower, in any artifact. The tensors have the names of open_clip's image tower."""

TRAINING_FACTOR = 3.0
"""Cost of a training step of all weights (forward and backward pass), in forward passes."""

FLOAT_BYTES = 4
"""Bytes of a float32 number."""


@dataclass(frozen=True)
class ArtifactSpec(ABC):
    """One artifact: its inputs, its address in the store, and the functions that build and load it.

    Each subclass is one kind of artifact. The content of an artifact depends on the name of the class, its version and
    the fields. Their fingerprint is part of the address, so equal specs share one artifact and different specs never
    do.

    Planning imports all kinds and builds nothing. A kind therefore imports slow modules, such as those that import
    torchvision (2 s), inside ``build``.

    Attributes:
        version: a number that grows when ``build`` changes its output. Artifacts of an older version are not used.
        kind: the folder in the store.
        gpu_share: the share of a GPU that a build asks for. If ``gpu_mib`` estimates the memory, a build may ask for a
            smaller share. A kind whose share is 0 is built on the CPU on every machine.
        cache_size: the number of loaded artifacts of this kind that a process keeps in memory.
    """

    version: ClassVar[int] = 1
    kind: ClassVar[str]
    gpu_share: ClassVar[float] = 0.0
    cache_size: ClassVar[int] = 0

    @property
    @abstractmethod
    def title(self) -> str:
        """The name of this kind in the plural, for example ``test features``."""

    @property
    @abstractmethod
    def shrink_hint(self) -> str:
        """Advice for a full disk: the change to a grid that leads to fewer or smaller artifacts of this kind."""

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        """The readable part of the address; the name of the kind by default."""
        return (type(self).__name__,)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the content depends on, as plain JSON types."""
        return {"kind": type(self).__name__, "version": self.version, **encode(self)}

    @property
    def address(self) -> str:
        """The path in the store: ``<kind>/<readable-name>--<8hex>``."""
        return f"{self.kind}/{address(*self.name_parts, of=self.identity)}"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        """The artifacts that ``build`` reads. They are built first."""
        return ()

    @property
    def opened_dataset(self) -> str:
        """The name of the dataset whose files ``build`` opens; empty if ``build`` reads artifacts alone."""
        return ""

    def missing_input(self, catalog: Catalog, data_root: Path | None) -> UserError | None:
        """Return the error for a missing input outside of the store; ``None`` if every such input is there.

        The caller has already checked the dataset :attr:`opened_dataset`.
        """
        return None

    @abstractmethod
    def size_bytes(self, catalog: Catalog) -> int:
        """Return the estimated size in the store, in bytes."""

    def gflops(self, catalog: Catalog) -> float:
        """Return the estimated number of operations that a build runs in the backbone, in units of 10^9."""
        return 0.0

    def gpu_mib(self, catalog: Catalog) -> float | None:
        """Return the estimated GPU memory of a build in MiB, CUDA's context included; ``None`` to use ``gpu_share``."""
        return None

    @abstractmethod
    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Write the artifact's files into ``builder.folder``, and facts about the artifact into ``builder.meta``."""

    def load(self, artifact: Artifact, device: str) -> Any:
        """Return the artifact as its readers use it, such as tensors on ``device``; by default, ``artifact`` itself."""
        return artifact


@dataclass(frozen=True)
class FrozenTower(ArtifactSpec):
    """The image tower of a backbone, with the preprocessing of its images.

    A process that reads this artifact need not import open_clip and build its model, which takes 5 seconds and 240 MiB
    for ViT-B/32. Without the artifact, a process loads the weights with open_clip, and the numbers are the same. Some
    towers, such as ResNets, remain open_clip's own modules. Their artifact has no weights, and every process loads them
    with open_clip.
    """

    kind = "backbones"
    title = "image towers"
    shrink_hint = "fewer backbones"

    backbone: BackboneRef

    def __post_init__(self) -> None:
        if self.backbone.precision is not None:  # one tower for all number formats
            object.__setattr__(self, "backbone", replace(self.backbone, precision=None))

    @property
    def address(self) -> str:
        return f"{self.kind}/{address(self.backbone.name, of=('FrozenTower', self.version, self.backbone))}"

    def size_bytes(self, catalog: Catalog) -> int:
        entry = catalog.backbone(self.backbone.name)
        return FLOAT_BYTES * entry.parameters if entry.has_matrices and not entry.timm else 0

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Write the tower into ``tower.safetensors``, and its shape and preprocessing into the manifest.

        Only a tower of the class ``ImageTower`` is written. Any other tower is loaded with open_clip.
        """
        from bolt.clip.tensor_files import save_tensors

        backbone = cache.backbone(self.backbone)
        tower, mean, std = backbone.tower, list(backbone.mean), list(backbone.std)
        if self.size_bytes(cache.catalog):
            save_tensors(tower.state_dict_open_clip(), builder.folder / TOWER_FILE)
        builder.meta.update(shape=asdict(tower.shape), logit_scale=backbone.logit_scale, mean=mean, std=std)

    def read(self, entry: BackboneEntry, artifact: Artifact, device: str) -> Backbone:
        """Return the backbone of a catalog entry on a device, with the image tower of the built artifact.

        The text side of the backbone is loaded with open_clip when it is needed.
        """
        from safetensors.torch import load_file

        from bolt.clip.backbone import Backbone
        from bolt.clip.tower import ImageTower
        from bolt.clip.tower_shape import TowerShape

        # Tensors in the file are not aligned in memory, and the bits of a product depend on the alignment: 50 of 200
        # products with the matrices of ViT-B/32 differ. Copies are aligned.
        tensors = {name: tensor.clone() for name, tensor in load_file(artifact.path(TOWER_FILE)).items()}
        meta, text = artifact.meta, TextSide(entry)
        tower = ImageTower.from_tensors(TowerShape(**meta["shape"]), tensors)
        backbone = Backbone(
            entry.name, tower, text.load, text.tokenize, meta["logit_scale"], meta["mean"], meta["std"],
            entry.resize, entry.interpolation,
        )  # fmt: skip
        return backbone.to(device)


class Loadable(Protocol[Loaded]):
    """The part of an :class:`ArtifactSpec` that the cache needs. ``Loaded`` is the type that ``load`` returns."""

    cache_size: ClassVar[int]

    @property
    def address(self) -> str: ...

    def load(self, artifact: Artifact, device: str) -> Loaded: ...

    def __hash__(self) -> int: ...


class ArtifactCache:
    """Cache of the artifacts and backbones of one store. Each is loaded when this process first reads it.

    Attributes:
        store, data_root, catalog: where artifacts, image folders and catalog entries are read from.
        device: the torch device that this process computes on.
    """

    def __init__(self, settings: RunSettings) -> None:
        import torch

        self.settings = settings
        self.store = Store(settings.store_url)
        self.data_root = settings.data_folder
        self.device = usable_device(settings)
        self.catalog: Catalog = load_catalog(settings.catalog_files)
        torch.set_num_threads(settings.threads)
        self._checked: set[DatasetRef] = set()
        self._values: dict[object, OrderedDict[Hashable, Any]] = defaultdict(OrderedDict)

    def artifact(self, address: str) -> Artifact:
        """Return a built artifact: its files and its manifest.

        Raises ``FileNotFoundError`` if it is not built.
        """

        def find() -> Artifact:
            if found := self.store.artifact(address):
                return found
            raise FileNotFoundError(f"{address} is not built in {self.store.url}")

        return self.cached(Artifact, address, find, CACHED_MANIFESTS)

    def get(self, spec: Loadable[Value]) -> Value:
        """Return the built artifact as loaded by the spec's ``load``.

        Raises ``FileNotFoundError`` if it is not built.
        """
        return self.cached(
            type(spec), spec, lambda: spec.load(self.artifact(spec.address), self.device), spec.cache_size
        )

    def backbone(self, ref: BackboneRef) -> Backbone:
        """Return the frozen backbone on this process's device, with the activation and precision of ``ref``.

        The image tower is read from the store if an intact ``FrozenTower`` is there; otherwise open_clip loads it. The
        cache keeps one backbone; its copies for other number formats share its tensors. Raises ``UserError`` if the
        catalog entry changed since the grid was read, or if the device cannot compute in the number format of ``ref``.
        """
        from bolt.clip.precision import UnsupportedPrecision

        tower = FrozenTower(ref)
        backbone = self.cached(BackboneRef, tower.backbone, lambda: self._load_backbone(tower), 1)
        with explained(UnsupportedPrecision, where="precision"):
            return backbone.at(ref.precision)

    def pop_backbone(self, ref: BackboneRef) -> Backbone:
        """Return the backbone and remove it, with all other values, from the cache.

        The caller may then change the image tower in place. Other values must go too, because they may share the
        tower's tensors. Raises what :meth:`backbone` raises.
        """
        backbone = self.backbone(ref)
        self._values.clear()
        return backbone

    def cached(self, kind: object, key: Hashable, make: Callable[[], Value], size: int) -> Value:
        """Return the value that is cached for ``key``. If there is none, call ``make`` and cache what it returns.

        At most ``size`` values of this kind stay in the cache: those that were used last.
        """
        values = self._values[kind]
        if key in values:
            values.move_to_end(key)
            found: Value = values[key]
            return found
        while values and len(values) >= size:
            values.popitem(last=False)  # before the new value is made: memory may not have room for both
        made = make()
        if size:
            values[key] = made
        return made

    def image_size(self, ref: BackboneRef) -> InputSize:
        """Return the size of the images that the backbone takes."""
        return self.catalog.backbone(ref.name).input_size

    def dataset_entry(self, ref: DatasetRef) -> DatasetEntry:
        """Return the catalog entry of a dataset.

        Raises ``UserError`` if the dataset changed since the grid was read.
        """
        entry = self.catalog.dataset(ref.name)
        if ref not in self._checked and dataset_ref(entry, self.data_root) != ref:
            raise UserError(f"dataset {ref.name} changed since the grid was read", hint="run the same command again")
        self._checked.add(ref)  # not checked again, because a check may list all files of a folder
        return entry

    def _load_backbone(self, tower: FrozenTower) -> Backbone:
        entry = self.catalog.backbone(tower.backbone.name)
        for swapped, variant in ((False, entry), (True, swap_activation(entry))):
            if backbone_ref(variant) != tower.backbone:
                continue
            if tower.size_bytes(self.catalog) and self.store.is_intact(tower.address):
                return tower.read(variant, self.artifact(tower.address), self.device)
            backbone = load_backbone(variant, self.device, swapped=swapped, keep_text=False)
            return_freed_memory()  # of the checkpoint
            return backbone
        raise UserError(f"backbone {entry.name} changed since the grid was read", hint="run the same command again")


def artifact_cache(settings: RunSettings) -> ArtifactCache:
    """Return this process's cache for these settings.

    A process has two caches at most, because a process with a GPU builds some kinds of artifacts on the CPU. After a
    change to one of the user's catalog files, a new cache is made.
    """
    texts = tuple(read_text(Path(file)) for file in settings.catalog_files)
    return _cache(replace(settings, device=usable_device(settings)), texts)


def clear_artifact_caches() -> None:
    """Drop everything that this process has loaded."""
    _cache.cache_clear()


@lru_cache(maxsize=2)
def _cache(settings: RunSettings, catalog_texts: tuple[str, ...]) -> ArtifactCache:
    return ArtifactCache(settings)


def usable_device(settings: RunSettings) -> str:
    """Return the device of the settings. The default is ``cuda`` if PyTorch finds a GPU, and ``cpu`` if it finds none.

    Raises ``UserError`` if this machine lacks the device.
    """
    import torch  # imported here, because `sources list` needs only addresses from this module, and no PyTorch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = settings.device or ("cuda" if gpus else "cpu")
    kind, _, index = device.partition(":")
    if kind == "cuda" and int(index or 0) >= gpus:
        raise UserError(f"this machine has no GPU for {device}", where="--device", hint="leave it out, or give cpu")
    return device


def build(spec: ArtifactSpec, settings: RunSettings) -> str:
    """Build an artifact unless the settings' store has it; return its address. Its inputs must have been built.

    Raises what :meth:`ArtifactSpec.build` raises. No half-built artifact is left behind.
    """
    cache = artifact_cache(settings)
    if cache.store.artifact(spec.address, spec.identity) is None:
        with cache.store.building(spec.address, spec.identity) as builder:
            spec.build(cache, builder)
        return_freed_memory()  # so that the process does not hold this memory during the next build
    return spec.address


def with_inputs(specs: Iterable[ArtifactSpec]) -> list[ArtifactSpec]:
    """Return ``specs`` and all their direct and indirect inputs, each once, inputs first."""
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
    """Return ``wanted`` rounded up to a multiple of ``step``."""
    return -(-wanted // step) * step
