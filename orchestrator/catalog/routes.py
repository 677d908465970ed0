"""Routes: a dataset's route says where the images come from, and how their files are laid out."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from orchestrator.catalog.validation import Scalar, StrictModel

PartName = Literal["train", "test", "all"]

_HEAD = 4096
"""Number of characters of a split file that surely hold the path of its first image."""


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
        loader: name of the function in ``sklearn.datasets`` that returns the images.
    """

    kind: Literal["sklearn"]
    loader: Literal["load_digits"]


def is_inside(path: str) -> bool:
    """Return whether a path stays inside its folder: relative, without ``.``, ``..``, backslashes and empty parts."""
    return not any(part in ("", ".", "..") for part in path.split("/")) and "\\" not in path


def expand_braces(pattern: str) -> list[str]:
    """Return all texts that a pattern such as ``{000..099}.tar`` or ``{train,test}.tar`` means in a shell."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    first, last, names = match.groups()
    texts = names.split(",") if first is None else [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return [path for text in texts for path in expand_braces(pattern[: match.start()] + text + pattern[match.end() :])]


def _check_inside(folder: str) -> str:
    if not is_inside(folder):
        raise ValueError(f"{folder!r} is not a path inside the data root")
    return folder


Inside = Annotated[str, AfterValidator(_check_inside)]


class FolderRoute(StrictModel):
    """Class folders of images.

    Attributes:
        folder: path of a folder under the data root. It has the sub-folders ``train/`` and ``test/``. If a split recipe
            divides the images, it has the sub-folder ``all/`` or the class folders themselves.
    """

    kind: Literal["folder"]
    folder: Inside


class ManifestRoute(StrictModel):
    """A table under the data root that lists images with their labels and, optionally, their splits.

    Attributes:
        folder: path under the data root of the folder with the table and the images.
        file: name of the table in that folder: a CSV file with a header line, a JSON or parquet file, or tar files with
            images and labels, such as ``{000..099}.tar``.
        columns: ``path``, ``label`` and ``split`` -> the name of that column. A path is relative to the folder, or is
            a file's name. A split is ``train``, ``test`` or ``val``; the images of ``val`` are not used. Without a
            column for the split, a split recipe divides the images. Without a column for the label, the table has a
            column of 0 and 1 for each class, and the 1 marks the class of the row.
    """

    kind: Literal["manifest"]
    folder: Inside
    file: Annotated[Inside, Field(pattern=r"(?i)\.(csv|tsv|txt|jsonl?|parquet|tar)$")] = "manifest.csv"
    columns: dict[Literal["path", "label", "split"], str] = Field(
        default={"path": "path", "label": "label", "split": "split"}
    )


class TorchvisionRoute(StrictModel):
    """A class of ``torchvision.datasets``.

    Attributes:
        dataset: name of the class.
        arguments: split -> sets of arguments. The images that the class returns for each set are joined in order.
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
        splits: split -> the name of the split in the repository.
        files: split -> the name of its file, or a pattern with ``*``, for files that are not named after the split.
        columns: ``image`` and ``label`` -> the name of that column.
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
        layout: how the images are sorted: folders by class, by WordNet id, or by number; or the lists of CUB.
    """

    kind: Literal["archive"]
    url: str
    checksum: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")] | None = None
    layout: Literal["class_folders", "wnid_folders", "numbered_folders", "cub"]


class ManualRoute(StrictModel):
    """Images that the user must get by hand.

    Attributes:
        instructions: how to get the images, and where to put them.
        layout: how the images are sorted. Class folders may be at any depth, if all are at the same depth.
    """

    kind: Literal["manual"]
    instructions: str
    layout: Literal["class_folders"] = "class_folders"


class DasslRoute(StrictModel):
    """A dataset of the few-shot benchmark, in the folders of CoOp and Dassl. The folders are read, never changed.

    Attributes:
        folders: possible names of the dataset's folder under the data root, CoOp's name first.
        images: the folder of the images in the dataset's folder. In some code bases, the images are in the dataset's
            folder itself, which is therefore tried next.
        layout: how the images are listed: Zhou's split file, the lists of FGVC Aircraft, or ImageNet's folders
            ``train`` and ``val``; or, for a dataset with test images only, folders by WordNet id or by number.
        file: the split file, or the lists with ``{part}`` in their name; none for folders.
        blob: git's id of the published split file, if it is known.
    """

    kind: Literal["dassl"]
    folders: Annotated[tuple[Inside, ...], Field(min_length=1)]
    images: Inside | None = None
    layout: Literal["zhou_split", "aircraft_lists", "imagenet_folders", "wnid_folders", "numbered_folders"]
    file: Inside | None = None
    blob: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None

    def lacking(self, folder: Path) -> list[str]:
        """Return the names of needed files and folders that ``folder`` lacks. Not every image is looked for."""
        files = [self.file.format(part=part) for part in ("train", "val", "test")] if self.file else []
        lacks = [name for name in dict.fromkeys(files) if not (folder / name).exists()]
        if self.layout in ("wnid_folders", "numbered_folders"):
            return [] if any(path.is_dir() for path in folder.glob("*")) else ["class folders"]
        if self.layout == "imagenet_folders":
            places = [folder / (self.images or "."), folder]
            root = next((place for place in places if (place / "train").exists()), places[0])
            return [(root / part).relative_to(folder).as_posix() for part in ("train", "val")
                    if not (root / part).exists()]  # fmt: skip
        there = [folder / (self.images or "."), folder / _first_listed(folder, files)]
        return lacks if there[0].exists() or there[1].is_file() else [*lacks, str(self.images)]


def _first_listed(folder: Path, files: Sequence[str]) -> str:
    """Return the path of the first image that a split file lists; ``.`` if no such path can be read.

    In a few code bases the images are beside the split file. Then this path leads to an image there.
    """
    try:
        with open(folder / files[0], encoding="utf-8") as stream:
            found = re.search(r'\[\s*\[\s*"([^"]*)"', stream.read(_HEAD))
    except (OSError, UnicodeDecodeError, IndexError):
        return "."
    return found[1] if found and is_inside(found[1]) else "."


AnyRoute: TypeAlias = (
    ToyRoute | SklearnRoute | FolderRoute | ManifestRoute | TorchvisionRoute | HuggingFaceRoute | ArchiveRoute
    | ManualRoute | DasslRoute
)  # fmt: skip
# A missing kind becomes an empty text, because pydantic's error for an unknown kind lists the known kinds.
_WITH_KIND = BeforeValidator(lambda value: {"kind": "", **value} if isinstance(value, Mapping) else value)
Route = Annotated[AnyRoute, Field(discriminator="kind"), _WITH_KIND]
