"""Kind ``Head``: the zero-shot classifier of a dataset.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.artifacts.images import Images, class_names
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.catalog import Catalog, prompt_templates
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.store import Artifact, Builder

if TYPE_CHECKING:
    from torch import Tensor

    from bolt.task.task import ClassText


@dataclass(frozen=True)
class Head(ArtifactSpec):
    """The zero-shot head: one text embedding of unit length per class, (C, D), in float32 whatever the towers use."""

    kind = "features"
    title = "zero-shot heads"
    shrink_hint = "fewer backbones or datasets"
    gpu_share = 0.25
    kept = 8

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "backbone", replace(self.backbone, precision=None))  # one head for all number formats

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "head"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (Images(self.dataset, "test", self.image_size),)

    def size_bytes(self, catalog: Catalog) -> int:
        classes = catalog.dataset(self.dataset.name).classes
        return FLOAT_BYTES * classes * catalog.backbone(self.backbone.name).embed_dim

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Put each class name into the dataset's prompt templates and encode them to one embedding per class."""
        from bolt.clip.tensor_files import save_tensors

        names = class_names(loaded, self.dataset, self.image_size)
        prompts = prompt_templates(loaded.dataset_entry(self.dataset))
        head_CD = loaded.backbone(self.backbone).zero_shot_head(names, prompts)
        save_tensors({"head": head_CD}, builder.folder / "head.safetensors")
        builder.meta.update(class_names=list(names), prompts=list(prompts))

    def words(self, loaded: LoadedArtifacts) -> ClassText:
        """The class names and prompts that the head was made of."""
        from bolt.task.task import ClassText

        meta = loaded.artifact(self.address).meta
        return ClassText(tuple(meta["class_names"]), tuple(meta["prompts"]))

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """The head (C, D) on the device."""
        from safetensors.torch import load_file

        return load_file(artifact.path("head.safetensors"))["head"].to(device)
