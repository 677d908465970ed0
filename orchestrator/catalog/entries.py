"""What a catalog file may say: the entries of datasets, domains and backbones, frozen and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator, model_validator

OPEN_CLIP = "open_clip."
"""Lists that open_clip ships (1,000 ImageNet names, 80 templates) are named ``open_clip.NAME``, not typed again."""

Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True)] | str
SplitName = Literal["train", "test"]
PartName = Literal["train", "test", "all"]
Number = Annotated[float, Field(strict=True, gt=0)]
Count = Annotated[StrictInt, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]


class Entry(BaseModel):
    """What all entries share: no unknown field, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToyRoute(Entry):
    """A task of the drawn world."""

    kind: Literal["toy"]
    task: str


class SklearnRoute(Entry):
    """A dataset that comes with scikit-learn."""

    kind: Literal["sklearn"]
    loader: str


class FolderRoute(Entry):
    """Class folders of images under the data root: ``train/`` and ``test/``, or one ``all/`` that a recipe splits."""

    kind: Literal["folder"]
    folder: str

    @field_validator("folder")
    @classmethod
    def _inside(cls, folder: str) -> str:
        if folder.startswith("/") or any(part in ("", ".", "..") for part in folder.split("/")):
            raise ValueError(f"{folder!r} is not a path inside the data root")
        return folder


class TorchvisionRoute(Entry):
    """A class of ``torchvision.datasets``.

    Attributes:
        dataset: name of the class.
        arguments: per part, the argument sets whose images are joined, in order.
        transpose: whether stored images must be transposed to be upright.
    """

    kind: Literal["torchvision"]
    dataset: str
    arguments: dict[PartName, tuple[dict[str, Scalar], ...]]
    transpose: StrictBool = False


class HuggingFaceRoute(Entry):
    """Parquet shards of a Hugging Face dataset repository.

    Attributes:
        repo: ``owner/name``.
        revision: commit to pin, if one is known.
        config: configuration, if the repository has several.
        splits: per part, the name of the repository's split.
        files: per part, the file that holds it, where it cannot be told from the split's name.
        columns: names of the image and the label column.
    """

    kind: Literal["huggingface"]
    repo: str
    revision: str | None = None
    config: str | None = None
    splits: dict[PartName, str]
    files: dict[PartName, str] = {}
    columns: dict[Literal["image", "label"], str] = {"image": "image", "label": "label"}


class ArchiveRoute(Entry):
    """One archive at a fixed address.

    Attributes:
        url: where it is.
        checksum: ``sha256:...`` or ``md5:...``; ``None`` where none is published.
        layout: how the images lie in it: by class folder, by WordNet-id folder, by numbered folder, or as in CUB.
    """

    kind: Literal["archive"]
    url: str
    checksum: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")] | None = None
    layout: Literal["class_folders", "wnid_folders", "numbered_folders", "cub"]


class ManualRoute(Entry):
    """A dataset only its user can get; ``instructions`` say from where and how it must lie."""

    kind: Literal["manual"]
    instructions: str


Route = Annotated[
    ToyRoute | SklearnRoute | FolderRoute | TorchvisionRoute | HuggingFaceRoute | ArchiveRoute | ManualRoute,
    Field(discriminator="kind"),
]


class Sizes(Entry):
    """Expected number of images per part, after the split recipe."""

    train: Annotated[StrictInt, Field(ge=0)]
    test: Count


class Splits(Entry):
    """The named recipe that makes the parts."""

    recipe: Literal["official", "eighty_twenty", "eighty_ten_ten", "published"]


class DomainEntry(Entry):
    """A family of datasets that share sources."""

    name: Name
    title: str


class DatasetEntry(Entry):
    """One dataset.

    Attributes:
        name: its key, lower-case.
        title: as printed in tables.
        domain: key of the family it shares sources with.
        route: how its images are had.
        class_names: words in label order, or folder name -> words, or ``open_clip.NAME``; ``None``: the data's own.
        prompts: templates with ``{}``, or the name of a set in ``grids/prompts.yaml``, or ``open_clip.NAME``.
        classes: how many classes the head has.
        mirrorable: whether a mirrored image keeps its class, as a mirrored b or an arrow to the left does not; where
            it does not, views of the support are not flipped.
        sizes: expected images per part; ``train: 0`` for a set that can only be evaluated on.
        smallest_class: training images of the smallest class, where it is known.
        splits: the recipe that makes the parts; the official ones by default.
        kin: key of the group that shares content; its members leave together under ``leave_group_out``.
        licence: under which terms the images come.
        source: address of the page they come from, where the route does not say it.
        note: where sources disagree.
        published_as: its name in the paper's result tables.
        published_classes: the paper's class count where it differs in kind from ``classes``.
        fine_tune_epochs: epochs of its source model; ``None``: about 2,000 steps.
    """

    name: Name
    title: str
    domain: Name
    route: Route
    class_names: tuple[str, ...] | dict[str, str] | str | None = None
    prompts: tuple[str, ...] | str
    classes: Annotated[StrictInt, Field(ge=2)]
    mirrorable: StrictBool = True
    sizes: Sizes
    smallest_class: Count | None = None
    splits: Splits = Splits(recipe="official")
    kin: str | None = None
    licence: str
    source: str | None = None
    note: str = ""
    published_as: str | None = None
    published_classes: Count | None = None
    fine_tune_epochs: Count | None = None

    @field_validator("class_names", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith(OPEN_CLIP):
            raise ValueError(f"{value!r} is neither a list of names nor a list of open_clip ({OPEN_CLIP}NAME)")
        words = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        if isinstance(words, list | tuple):
            for word in words:
                if not isinstance(word, str) or not word.strip():
                    raise ValueError(f"the class name {word!r} is not text; write it in quotes")
        elif words is not None and not isinstance(words, str):
            raise ValueError(f"{value!r} is neither a list of names nor a mapping from folder name to words")
        return value

    @field_validator("prompts", mode="before")
    @classmethod
    def _templates(cls, value: Any) -> Any:
        return value if isinstance(value, str) else check_templates(value)

    @model_validator(mode="after")
    def _consistent(self) -> DatasetEntry:
        words = self.class_names
        if isinstance(words, tuple | dict):
            if len(words) != self.classes:
                raise ValueError(f"class_names has {len(words)} names, classes says {self.classes}")
            texts = list(words.values()) if isinstance(words, dict) else list(words)
            twice = sorted({text for text in texts if texts.count(text) > 1})
            if twice:
                raise ValueError(f"two classes are called {twice[0]!r}; the text head could not tell them apart")
        if self.smallest_class is not None and self.smallest_class * self.classes > self.sizes.train:
            raise ValueError(f"smallest_class {self.smallest_class} x {self.classes} classes exceeds sizes.train")
        return self

    @property
    def is_source(self) -> bool:
        """Whether it has images to train on."""
        return self.sizes.train > 0

    @property
    def most_shots(self) -> int:
        """The largest k every class can give: the smallest class where it is known, else at most the average."""
        return self.smallest_class or self.sizes.train // self.classes


def check_templates(value: Any) -> Any:
    """A list of prompt templates. Raises ``ValueError`` for an empty list or a template without ``{}``."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{value!r} is neither a list of templates nor the name of a set")
    for template in value:
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"the template {template!r} has no {{}} for the class name")
    return value


class Weights(Entry):
    """Where a backbone's weights come from: a file, or a tag open_clip knows."""

    file: str | None = None
    pretrained: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Weights:
        if (self.file is None) == (self.pretrained is None):
            raise ValueError("needs either 'file' or 'pretrained'")
        return self


class BackboneEntry(Entry):
    """One CLIP.

    Attributes:
        name: its key.
        title: as printed in tables.
        architecture: an open_clip model name, or the path of a model-config json relative to ``grids/``.
        weights: a file (relative to ``grids/``, or absolute) or a pre-trained tag of open_clip.
        quick_gelu: whether the towers use QuickGELU; weights made with the one activation are wrong under the other.
        image_size: side of the square input.
        embed_dim: width of the joint embedding.
        width, layers, patch: shape of the image tower.
        gflops_per_image: 10^9 floating-point operations of one forward pass, a multiply-add counted as two.
        parameters: of the image tower.
        precision: number format of its arithmetic.
        published_as: its name in the paper's tables.
    """

    name: Name
    title: str
    architecture: str
    weights: Weights
    quick_gelu: StrictBool
    image_size: Count
    embed_dim: Count
    width: Count
    layers: Count
    patch: Count
    gflops_per_image: Number
    parameters: Count
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    published_as: str | None = None


def key_error(name: str) -> str | None:
    """What is wrong with a key, if anything: it names files and addresses, so it must be plain."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        return None
    return f"the name {name!r} may hold lower-case letters, digits, '_', '-' and '.' only"
