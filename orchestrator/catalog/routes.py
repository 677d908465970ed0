"""Routes: a dataset's route says where the images come from, and how their files are laid out."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from bolt.image_folders import class_folders, part_folders, part_of
from orchestrator.catalog.validation import Scalar, StrictModel
from orchestrator.util.units import listed

PartName = Literal["train", "test", "all"]

TABLES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".tar")
"""Suffixes of the files that can list images."""

_HEAD = 4096
"""How many characters of a split file are read to find the path of its first image."""


class BaseRoute(StrictModel):
    """Base class of routes. By default, ``data prepare`` puts a dataset into the folder ``data_root/<name>``."""

    @property
    def origin(self) -> str:
        """The address or library that the images are fetched from; empty if no program fetches them."""
        return ""

    def place(self, data_root: Path, name: str) -> Path:
        """Return the folder of the files of the dataset ``name``."""
        return data_root / name

    def missing(self, folder: Path, recipe: str) -> str:
        """Return a text that says what is missing: the folder, or something in it; empty if nothing is missing.

        ``recipe``: the recipe that divides the images.

        If a folder of ``data prepare`` exists, it is complete, because it gets its name only after the last image.
        """
        return "" if folder.is_dir() else f"{folder} does not exist"


class ToyRoute(BaseRoute):
    """Images drawn by ``orchestrator.drawn_world``.

    Attributes:
        task: name of the drawn task.
    """

    kind: Literal["toy"]
    task: str


class SklearnRoute(BaseRoute):
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
    if (match := re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{},]*,[^{}]*)\}", pattern)) is None:
        return [pattern]
    first, last, names = match.groups()
    texts = names.split(",") if first is None else [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return [path for text in texts for path in expand_braces(pattern[: match.start()] + text + pattern[match.end() :])]


def files_of(pattern: Path) -> list[Path]:
    """Return the files that a path or a pattern means. The path of an existing file is no pattern, even with braces."""
    return [pattern] if pattern.is_file() else [Path(path) for path in expand_braces(str(pattern))]


def _check_inside(folder: str) -> str:
    if not is_inside(folder):
        raise ValueError(f"{folder!r} is not a path inside the data root")
    return folder


Inside = Annotated[str, AfterValidator(_check_inside)]


class OwnRoute(BaseRoute):
    """Base class of the routes to images of the user.

    Attributes:
        folder: path of their folder under the data root.
    """

    folder: Inside

    def place(self, data_root: Path, name: str) -> Path:
        """Return the folder with the images."""
        return data_root / self.folder


class FolderRoute(OwnRoute):
    """Class folders of images, in ``train/`` and ``test/``.

    If a split recipe divides the images, the class folders are in ``all/`` or in ``folder`` itself.
    """

    kind: Literal["folder"]

    def missing(self, folder: Path, recipe: str) -> str:
        """Return a text that names the sub-folders which the recipe reads; empty if none of them is missing.

        The recipe ``official`` reads ``train/`` and ``test/``. Any other recipe reads ``all/`` or class folders.
        """
        wanted = ("train", "test") if recipe == "official" else ("all",)
        if folder.is_dir():
            parts = part_folders(folder)
            inner = [] if recipe == "official" else class_folders(folder)
            classes = any(path.name != "all" and part_of(path.name) is None for path in inner)
            if classes or all(name in parts or (folder / name).is_dir() for name in wanted):
                return ""
        return f"class folders of images are needed in {' and '.join(f'{folder / name}/' for name in wanted)}"


class ManifestRoute(OwnRoute):
    """A table under the data root that lists images with their labels and, optionally, their splits.

    Attributes:
        file: name of the table in that folder: a CSV file with a header line, a JSON or parquet file, or a tar file
            with images and labels. A pattern such as ``{train,test}.csv`` or ``{000..099}.tar`` means several files.
        columns: ``path``, ``label`` and ``split`` -> the name of that column. A path is relative to the folder, or is
            a file's name. A split is ``train``, ``test`` or ``val``; the images of ``val`` are not used. Without a
            column for the split, a split recipe divides the images. Without a column for the label, the table has a
            column of 0 and 1 for each class, and the 1 marks the class of the row.
    """

    kind: Literal["manifest"]
    file: Annotated[Inside, Field(pattern=rf"(?i)({'|'.join(map(re.escape, TABLES))})$")] = "manifest.csv"
    columns: dict[Literal["path", "label", "split"], str] = Field(
        default={"path": "path", "label": "label", "split": "split"}
    )

    def missing(self, folder: Path, recipe: str) -> str:
        """Return a text that names the table's first missing file; empty if none is missing."""
        absent = (file for file in files_of(folder / self.file) if not file.is_file())
        return next((f"{file} does not exist" for file in absent), "")


class TorchvisionRoute(BaseRoute):
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

    @property
    def origin(self) -> str:
        """The name of the class."""
        return f"torchvision.datasets.{self.dataset}"


class HuggingFaceRoute(BaseRoute):
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

    @property
    def origin(self) -> str:
        """The address of the repository's page."""
        return f"https://huggingface.co/datasets/{self.repo}"


class ArchiveRoute(BaseRoute):
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

    @property
    def origin(self) -> str:
        """The URL, and the checksum if one is published."""
        return self.url + (f" ({self.checksum})" if self.checksum else "")


class ManualRoute(BaseRoute):
    """Images that the user must get by hand.

    Attributes:
        instructions: how to get the images, and where to put them.
        layout: how the images are sorted. Class folders may be at any depth, if all are at the same depth.
    """

    kind: Literal["manual"]
    instructions: str
    layout: Literal["class_folders"] = "class_folders"


class DasslRoute(BaseRoute):
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

    def place(self, data_root: Path, name: str) -> Path:
        """Return the first of the possible folders that has the needed files.

        If no folder has them, return the first folder that exists. If no folder exists, return the first possible one.
        """
        there = [data_root / name for name in self.folders if (data_root / name).is_dir()]
        complete = (folder for folder in there if len(there) == 1 or not self._lacking(folder))
        return next(complete, next(iter(there), data_root / self.folders[0]))

    def missing(self, folder: Path, recipe: str) -> str:
        """Return the first file or folder that is missing, and what is there instead."""
        if not folder.is_dir():
            others = f" (nor {', '.join(self.folders[1:])})" if self.folders[1:] else ""
            return f"{folder} does not exist{others}"
        if not (absent := self._lacking(folder)):
            return ""
        there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        return f"{folder} has no {absent[0]}{f', but {listed(there, 4)}' if there else ': it is empty'}"

    @property
    def split_files(self) -> tuple[str, ...]:
        """The split file, or the list of each part; empty for folders."""
        names = (self.file.format(part=part) for part in ("train", "val", "test") if self.file)
        return tuple(dict.fromkeys(names))

    def image_folder(self, folder: Path, inside: str) -> Path:
        """Return the folder that holds the images: the folder ``images``, or the dataset's ``folder`` itself.

        ``inside``: the path of an image or of a sub-folder, relative to the wanted folder. If ``inside`` exists in
        ``folder`` and not in ``images``, ``folder`` is returned. Otherwise ``images`` is returned.
        """
        named = folder / (self.images or ".")
        return folder if not (named / inside).exists() and (folder / inside).exists() else named

    def _lacking(self, folder: Path) -> list[str]:
        """Return the names of needed files and folders that ``folder`` lacks. Not every image is looked for."""
        lacks = [name for name in self.split_files if not (folder / name).exists()]
        if self.layout in ("wnid_folders", "numbered_folders"):
            return [] if any(path.is_dir() for path in folder.glob("*")) else ["class folders"]
        if self.layout == "imagenet_folders":
            root = self.image_folder(folder, "train")
            return [(root / part).relative_to(folder).as_posix() for part in ("train", "val")
                    if not (root / part).exists()]  # fmt: skip
        there = [folder / (self.images or "."), folder / _first_listed(folder, self.split_files)]
        return lacks if there[0].exists() or there[1].is_file() else [*lacks, str(self.images)]


def _first_listed(folder: Path, files: Sequence[str]) -> str:
    """Return the path of the first image that a split file lists; ``.`` if no such path can be read.

    In a few code bases the images are beside the split file. Then this path leads to an image there.
    """
    with suppress(OSError, UnicodeDecodeError, IndexError), open(folder / files[0], encoding="utf-8") as stream:
        found = re.search(r'\[\s*\[\s*"([^"]*)"', stream.read(_HEAD))
        if found and is_inside(found[1]):
            return found[1]
    return "."


AnyRoute: TypeAlias = (
    ToyRoute | SklearnRoute | FolderRoute | ManifestRoute | TorchvisionRoute | HuggingFaceRoute | ArchiveRoute
    | ManualRoute | DasslRoute
)  # fmt: skip
# A missing kind becomes an empty text, because pydantic's error for an unknown kind lists the known kinds.
_WITH_KIND = BeforeValidator(lambda value: {"kind": "", **value} if isinstance(value, Mapping) else value)
Route = Annotated[AnyRoute, Field(discriminator="kind"), _WITH_KIND]
