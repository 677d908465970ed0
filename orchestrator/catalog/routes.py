"""Routes: the kinds of places that a dataset's images come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from orchestrator.catalog.validation import Scalar, StrictModel

PartName = Literal["train", "test", "all"]


class ToyRoute(StrictModel):
    """Images drawn by ``orchestrator.drawn_world``.

    Attributes:
        task: name of the drawn task.
    """

    kind: Literal["toy"]
    task: str


class SklearnRoute(StrictModel):
    """A dataset that comes with scikit-learn.

    Attributes:
        loader: name of its function in ``sklearn.datasets``.
    """

    kind: Literal["sklearn"]
    loader: str


def is_inside(path: str) -> bool:
    """Whether a path with forward slashes stays inside its folder: relative, without ``.``, ``..`` or empty parts."""
    return not any(part in ("", ".", "..") for part in path.split("/")) and "\\" not in path


def expand_braces(pattern: str) -> list[str]:
    """Return the texts of a pattern such as ``{000..099}.tar`` or ``{train,test}.tar``, as a shell does."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    texts = match[3].split(",") if match[1] is None else (
        [f"{number:0{len(match[1])}}" for number in range(int(match[1]), int(match[2]) + 1)]
    )  # fmt: skip
    return [path for text in texts for path in expand_braces(pattern[: match.start()] + text + pattern[match.end() :])]


def _check_inside(folder: str) -> str:
    if not is_inside(folder):
        raise ValueError(f"{folder!r} is not a path inside the data root")
    return folder


Inside = Annotated[str, AfterValidator(_check_inside)]


class FolderRoute(StrictModel):
    """Class folders under the data root, in ``train/`` and ``test/``, or in ``all/`` for a split recipe.

    Attributes:
        folder: the folder that holds them, under the data root.
    """

    kind: Literal["folder"]
    folder: Inside


class ManifestRoute(StrictModel):
    """A table under the data root that lists images with their labels and, optionally, their splits.

    Attributes:
        folder: the folder of table and images, under the data root.
        file: name of the table in that folder: CSV with a header line, or parquet; or of tar files with images and
            labels, as ``{000..099}.tar``.
        columns: names of its columns. A path is relative to the folder, or a file's name. A split is ``train``,
            ``test``, or ``val``, which is not used; without that column a split recipe divides the images. Without a
            column for the label, the label is the name of the column with the row's only 1 among zeros.
    """

    kind: Literal["manifest"]
    folder: Inside
    file: Annotated[Inside, Field(pattern=r"(?i)\.(csv|tsv|txt|parquet|tar)$")] = "manifest.csv"
    columns: dict[Literal["path", "label", "split"], str] = Field(
        default={"path": "path", "label": "label", "split": "split"}
    )


class TorchvisionRoute(StrictModel):
    """A class of ``torchvision.datasets``.

    Attributes:
        dataset: name of the class.
        arguments: split -> sets of arguments, whose images are joined in order.
        transpose: whether the stored images must be transposed to be upright.
    """

    kind: Literal["torchvision"]
    dataset: str
    arguments: dict[PartName, tuple[dict[str, Scalar], ...]]
    transpose: StrictBool = False


class HuggingFaceRoute(StrictModel):
    """A dataset repository of Hugging Face.

    Attributes:
        repo: ``owner/name``.
        revision: commit to pin, if one is known.
        layout: parquet shards, or image files in class folders.
        config: name of the configuration, if the repository has several.
        splits: split -> the repository's name for it.
        files: split -> its file, or a pattern with ``*``, if the split's name does not tell.
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
    """A dataset downloaded as one archive from a fixed URL.

    Attributes:
        url: the URL.
        checksum: ``sha256:...`` or ``md5:...``; ``None`` if none is published.
        layout: how images are sorted in it: folders by class, by WordNet id, by number, or as in CUB.
    """

    kind: Literal["archive"]
    url: str
    checksum: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")] | None = None
    layout: Literal["class_folders", "wnid_folders", "numbered_folders", "cub"]


class ManualRoute(StrictModel):
    """Images that the user must get by hand, as ``instructions`` say.

    The class folders may be at any depth below the dataset's folder, all at the same.

    Attributes:
        instructions: how to get the images, and where to put them.
        layout: how images are sorted in them.
    """

    kind: Literal["manual"]
    instructions: str
    layout: Literal["class_folders"] = "class_folders"


class DasslRoute(StrictModel):
    """A dataset of the few-shot benchmark in the folders of CoOp and Dassl. It is read where it lies.

    Attributes:
        folders: names of its folder under the data root: first CoOp's name for it, then the names in other codes.
        images: the folder of the images in it. Some codes have none, so the dataset's folder is tried next.
        layout: how images are listed: Zhou's split file, the lists of FGVC Aircraft, ImageNet's ``train`` and ``val``
            with WordNet ids, or folders of a test set alone.
        file: the split file, or the lists with ``{part}`` in their name; empty for folders.
        blob: git's id of the split file that everyone uses, if it is known.
    """

    kind: Literal["dassl"]
    folders: Annotated[tuple[Inside, ...], Field(min_length=1)]
    images: Inside | None = None
    layout: Literal["zhou_split", "aircraft_lists", "imagenet_folders", "wnid_folders", "numbered_folders"]
    file: Inside | None = None
    blob: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None


def _with_kind(value: Any) -> Any:
    """Give a route without a kind an empty one, so that its error lists the kinds."""
    return {"kind": "", **value} if isinstance(value, Mapping) else value


Route = Annotated[
    ToyRoute
    | SklearnRoute
    | FolderRoute
    | ManifestRoute
    | TorchvisionRoute
    | HuggingFaceRoute
    | ArchiveRoute
    | ManualRoute
    | DasslRoute,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]
