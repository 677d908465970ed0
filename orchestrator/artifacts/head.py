"""Kind ``Head``: the zero-shot classifier of a dataset, and the classes that it cannot tell apart.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bolt.task.equal_classes import equal_classes
from orchestrator.artifacts.images import OfTestSplit
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactCache
from orchestrator.catalog import Catalog, prompt_templates
from orchestrator.store import Artifact, Builder, CorruptArtifact, Store
from orchestrator.util.errors import explained, shorten
from orchestrator.util.units import listed, pluralize

if TYPE_CHECKING:
    from torch import Tensor

    from bolt.task.task import ClassText

FILE = "head.safetensors"

SHOWN_GROUPS, SHOWN_CLASSES = 4, 6
"""How many groups of equal classes a sentence names at most, and how many classes of each group it names."""


@dataclass(frozen=True)
class Head(OfTestSplit):
    """The zero-shot head: one text embedding of unit length per class, (C, D), always in float32."""

    title = "zero-shot heads"
    gpu_share = 0.25
    part = "head"

    def __post_init__(self) -> None:
        if self.backbone.precision is not None:  # one head for all number formats
            object.__setattr__(self, "backbone", replace(self.backbone, precision=None))

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * catalog.dataset(self.dataset.name).classes * catalog.backbone(self.backbone.name).embed_dim

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Fill the dataset's prompt templates with each class name, and encode one embedding per class.

        The manifest lists the classes whose embeddings are equal. Of the texts that are too long for the text tower, it
        has the number and the first.
        """
        from bolt.clip.backbone import filled
        from bolt.clip.tensor_files import save_tensors

        names = self.images.class_names(cache)
        prompts = prompt_templates(cache.dataset_entry(self.dataset))
        backbone = cache.backbone(self.backbone)
        with explained(ValueError, where=f"dataset {self.dataset.name}, field prompts"):
            head_CD = backbone.zero_shot_head(names, prompts)
        save_tensors({"head": head_CD}, builder.folder / FILE)
        shared = _equal_names(names, head_CD.numpy(force=True))
        cut = backbone.cut_off(filled(names, prompts))
        about_cut = {"texts": len(cut), "first": cut[0]} if cut else {}
        builder.meta.update(class_names=list(names), prompts=prompts, equal_classes=shared, cut_off=about_cut)

    def class_text(self, cache: ArtifactCache) -> ClassText:
        """Return the class names and prompts that the head was made of."""
        from bolt.task.task import ClassText

        meta = cache.artifact(self.address).meta
        return ClassText.of(meta["class_names"], meta["prompts"])

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """Return the head (C, D) on the device."""
        from safetensors.torch import load_file

        return load_file(artifact.path(FILE))["head"].to(device)


@dataclass(frozen=True)
class EqualClasses:
    """Classes that a zero-shot head cannot tell apart, such as the two cranes of ImageNet.

    Attributes:
        classes, distinct: the numbers of classes and of distinct text vectors.
        shared: the names of the classes that share a vector, group by group.
    """

    backbone: str
    dataset: str
    classes: int
    distinct: int
    shared: tuple[tuple[str, ...], ...]

    @property
    def sentence(self) -> str:
        """The classes in one line: ``pets: 3 distinct vectors for 4 classes under vit-b-32, equal: cat = dog``."""
        groups = [" = ".join(group[:SHOWN_CLASSES]) + " = ..." * (len(group) > SHOWN_CLASSES) for group in self.shared]
        vectors = f"{pluralize(self.distinct, 'distinct vector')} for {self.classes} classes under {self.backbone}"
        return f"{self.dataset}: {vectors}, equal: {listed(groups, SHOWN_GROUPS, '; ')}"


def equal_classes_of(store: Store, head: Head) -> EqualClasses | None:
    """Return the classes that a built head cannot tell apart.

    Return ``None`` if there are no such classes, or if the head is not built or is damaged.
    """
    from safetensors.numpy import load_file

    with suppress(CorruptArtifact, OSError):
        if built := store.artifact(head.address, head.identity):
            names, shared = built.meta["class_names"], built.meta.get("equal_classes")
            if shared is None:  # an earlier version built the head and did not record equal classes
                shared = _equal_names(names, load_file(built.path(FILE))["head"])
            if groups := tuple(map(tuple, shared)):
                distinct = len(names) - sum(len(group) - 1 for group in groups)
                return EqualClasses(head.backbone.name, head.dataset.name, len(names), distinct, groups)
    return None


def cut_off_sentence(store: Store, head: Head) -> str:
    """Return a sentence on the texts of a built head that are too long for the text tower; empty for none."""
    with suppress(CorruptArtifact):
        built = store.artifact(head.address, head.identity)
        if built and (cut := built.meta.get("cut_off")):
            what = f"{head.backbone.name} does not read the end of {pluralize(cut['texts'], 'long text')}, such as"
            return f"{head.dataset.name}: {what} {shorten(cut['first'])!r}"
    return ""


def _equal_names(names: Sequence[str], head_CD: NDArray[np.float32]) -> list[list[str]]:
    return [[names[label] for label in group] for group in equal_classes(head_CD)]
