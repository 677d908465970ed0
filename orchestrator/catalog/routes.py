"""Where a dataset's images come from: the kinds of routes a catalog entry may name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator

from orchestrator.catalog.fields import Entry, Scalar

PartName = Literal["train", "test", "all"]


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
    files: dict[PartName, str] = Field(default={})
    columns: dict[Literal["image", "label"], str] = Field(default={"image": "image", "label": "label"})


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
