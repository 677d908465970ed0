"""Where a dataset's images come from: the kinds of routes a catalog entry may name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from orchestrator.catalog.fields import Scalar, StrictModel

PartName = Literal["train", "test", "all"]


class ToyRoute(StrictModel):
    """A task of the drawn world."""

    kind: Literal["toy"]
    task: str


class SklearnRoute(StrictModel):
    """A dataset that comes with scikit-learn."""

    kind: Literal["sklearn"]
    loader: str


def is_inside(path: str) -> bool:
    """Whether a path with forward slashes is a plain relative one: no root, no ``.`` or ``..``, no empty part."""
    return not any(part in ("", ".", "..") for part in path.split("/")) and "\\" not in path


def _check_inside(folder: str) -> str:
    if not is_inside(folder):
        raise ValueError(f"{folder!r} is not a path inside the data root")
    return folder


Inside = Annotated[str, AfterValidator(_check_inside)]


class FolderRoute(StrictModel):
    """Class folders of images under the data root: ``train/`` and ``test/``, or one ``all/`` that a recipe splits."""

    kind: Literal["folder"]
    folder: Inside


class ManifestRoute(StrictModel):
    """A table of images under the data root: their paths, their labels and, if it says so, their part.

    Attributes:
        folder: where the table and the images are, under the data root.
        file: the table's name in that folder, CSV (with a header line) or parquet.
        columns: names of its columns; the one of the split may be absent, then a recipe makes the parts. A path is
            relative to the folder, with forward slashes; a split is ``train`` or ``test``.
    """

    kind: Literal["manifest"]
    folder: Inside
    file: Annotated[Inside, Field(pattern=r"\.(csv|parquet)$")] = "manifest.csv"
    columns: dict[Literal["path", "label", "split"], str] = Field(
        default={"path": "path", "label": "label", "split": "split"}
    )


class TorchvisionRoute(StrictModel):
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


class HuggingFaceRoute(StrictModel):
    """A Hugging Face dataset repository, its files at their own relative paths.

    Attributes:
        repo: ``owner/name``.
        revision: commit to pin, if one is known.
        layout: parquet shards, or image files in class folders.
        config: configuration, if the repository has several.
        splits: per part, the name of the repository's split.
        files: per part, the file (or a pattern with ``*``) that holds it, where it cannot be told from the split's
            name.
        columns: names of the image and the label column.
    """

    kind: Literal["huggingface"]
    repo: str
    revision: str | None = None
    layout: Literal["parquet", "class_folders"] = "parquet"
    config: str | None = None
    splits: dict[PartName, str]
    files: dict[PartName, str] = Field(default={})
    columns: dict[Literal["image", "label"], str] = Field(default={"image": "image", "label": "label"})


class ArchiveRoute(StrictModel):
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


class ManualRoute(StrictModel):
    """A dataset only its user can get; ``instructions`` say from where and how it must lie.

    The class folders may lie at any one depth below the dataset's folder.
    """

    kind: Literal["manual"]
    instructions: str
    layout: Literal["class_folders"] = "class_folders"


Route = Annotated[
    ToyRoute
    | SklearnRoute
    | FolderRoute
    | ManifestRoute
    | TorchvisionRoute
    | HuggingFaceRoute
    | ArchiveRoute
    | ManualRoute,
    Field(discriminator="kind"),
]
