"""Find out which images and weights of a grid are not on this machine, and say how to get them."""

import shlex
from pathlib import Path

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from bolt.image_folders import class_folders, part_folders, part_of
from orchestrator.catalog.backbone_entry import BackboneEntry, CheckpointEntry
from orchestrator.catalog.dataset_entry import DATA_VARIABLE, DatasetEntry, dataset_folder, partial_folder
from orchestrator.catalog.location import display_path, grids_folder
from orchestrator.catalog.references import architecture_path, weights_path
from orchestrator.catalog.routes import DasslRoute, FolderRoute, ManifestRoute, ManualRoute, expand_braces
from orchestrator.util.errors import UserError
from orchestrator.util.units import listed

DASSL_PAGE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
"""The page that describes the folders of the few-shot benchmark, with links to the images and the split files."""


def missing_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """Return ``None`` if a dataset's images are on this machine, otherwise an error that says how to get them.

    Drawn datasets and datasets of scikit-learn need no files. A folder dataset needs its folder under ``data_root``,
    with the sub-folders that its split recipe reads. A manifest needs its table. A dataset of the few-shot benchmark
    needs its split file and its folder of images. Any other dataset needs the folder ``data_root/<name>``. If this
    folder exists, it has all images, because ``data prepare`` gives it this name only after the last image.
    """
    route = entry.route
    if entry.is_bundled:
        return None
    folder = dataset_folder(entry, data_root)
    if data_root is None:
        hint = f"pass --data-root PATH or set {DATA_VARIABLE}; the images are then read from PATH/{folder}"
        if not entry.is_own and not isinstance(route, DasslRoute):
            hint += f"\n  {_how_to_prepare(entry, None)}"
        return UserError(f"dataset {entry.name} is read from a folder, and no data root is given", hint=hint)
    if isinstance(route, FolderRoute):
        return _missing_folders(entry, route, folder)
    if isinstance(route, ManifestRoute):
        absent = [file for file in expand_braces(route.file) if not (folder / file).is_file()]
        return UserError(f"dataset {entry.name} is not there: {folder / absent[0]} does not exist") if absent else None
    if isinstance(route, DasslRoute):
        return _missing_benchmark(entry, route, folder)
    if folder.is_dir():
        return None
    begun = partial_folder(entry, data_root).is_dir()
    state = "only partly there" if begun else f"not there: {folder} does not exist"
    return UserError(f"dataset {entry.name} is {state}", hint=_how_to_prepare(entry, data_root))


def _missing_folders(entry: DatasetEntry, route: FolderRoute, folder: Path) -> UserError | None:
    """Return an error if a folder dataset lacks the sub-folders that its split recipe reads.

    The recipe ``official`` reads ``train/`` and ``test/``. Any other recipe reads ``all/`` or class folders.
    """
    official = entry.splits.recipe == "official"
    wanted = ("train", "test") if official else ("all",)
    parts = part_folders(folder) if folder.is_dir() else {}
    inner = class_folders(folder) if folder.is_dir() else []
    classes = [path for path in inner if path.name != "all" and part_of(path.name) is None]
    there = all(name in parts or (folder / name).is_dir() for name in wanted)
    if there or (classes and not official):
        return None
    needed = " and ".join(f"{folder / name}/" for name in wanted)
    hint = f"point --data-root (or {DATA_VARIABLE}) to the folder that holds {route.folder}/"
    hint += f"; the images come from {entry.source} ({entry.licence})" if entry.source else ""
    return UserError(f"dataset {entry.name} is not there: class folders of images are needed in {needed}", hint=hint)


def _missing_benchmark(entry: DatasetEntry, route: DasslRoute, folder: Path) -> UserError | None:
    """Return an error that names the first file or folder that a dataset of the few-shot benchmark lacks."""
    if folder.is_dir():
        if not (absent := route.lacking(folder)):
            return None
        there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        what = f"{folder} has no {absent[0]}, but {listed(there, 4) or 'nothing'}"
    else:
        others = f" (nor {', '.join(route.folders[1:])})" if route.folders[1:] else ""
        what = f"{folder} does not exist{others}"
    hint = f"CoOp's DATASETS.md says how to get the images: {entry.source or DASSL_PAGE}\n  licence: {entry.licence}"
    return UserError(f"dataset {entry.name} is not there: {what}", hint=hint)


def missing_weights(entry: BackboneEntry) -> UserError | None:
    """Return an error that names the first missing file of a backbone; ``None`` if no file is missing.

    Files that a program fetches do not count as missing.
    """
    for path in (architecture_path(entry), weights_path(entry)):
        if path is not None and not path.is_file() and not (entry.weights.hub and path.suffix != ".json"):
            hint = "put the file there, or correct the catalog's entry"
            if entry.weights.by_hand is not None:
                hint = f"no program can fetch the file; by hand: {entry.weights.by_hand}"
            elif path.is_relative_to(grids_folder()):
                hint = "the file comes with the project: run from a complete checkout or reinstall"
            return UserError(f"backbone {entry.name} is not there: {display_path(path)} does not exist", hint=hint)
    return None


def missing_checkpoint(entry: CheckpointEntry) -> UserError | None:
    """Return an error that names the file of an adopted checkpoint if the file does not exist, otherwise ``None``."""
    try:
        checkpoint_files(entry.path)
    except UnreadableCheckpoint as error:
        adopt = f"sources adopt PATH --backbone {entry.backbone} --dataset {entry.dataset} --catalog FILE"
        hint = f"put the file there, or adopt the checkpoint again: python -m orchestrator {adopt}"
        what = f"the checkpoint of {entry.dataset} for {entry.backbone} is not there: {error}"
        return UserError(what, hint=hint)
    return None


def _how_to_prepare(entry: DatasetEntry, data_root: Path | None) -> str:
    """Return lines that say how to get a dataset's images, with the images' origin and licence."""
    root = shlex.quote(str(data_root)) if data_root else "PATH"
    lines = [f"python -m orchestrator data prepare {entry.name} --data-root {root}"]
    if isinstance(entry.route, ManualRoute):
        lines = [f"no program can fetch the images; by hand, into {root}/{entry.name}: {entry.route.instructions}"]
    elif entry.gated:
        lines.append(f"before that: {entry.gated}")
    if origin := image_origin(entry):
        lines.append(f"from {origin}")
    lines.append(f"licence: {entry.licence}")
    return "\n  ".join(lines)


def image_origin(entry: DatasetEntry) -> str:
    """Return the address or library that a dataset's images are fetched from; empty if no program fetches them."""
    route = entry.route
    if route.kind == "torchvision":
        return f"torchvision.datasets.{route.dataset}"
    if route.kind == "huggingface":
        return f"https://huggingface.co/datasets/{route.repo}"
    if route.kind == "archive":
        return route.url + (f" ({route.checksum})" if route.checksum else "")
    return ""
