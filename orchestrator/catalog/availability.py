"""What is there and what is missing, with the step that gets it."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.catalog.backbone_entry import BackboneEntry
from orchestrator.catalog.data_paths import BUNDLED_ROUTES, DATA_VARIABLE, dataset_folder, partial_folder
from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.location import display_path, grids_folder
from orchestrator.catalog.references import architecture_path, weights_path
from orchestrator.catalog.routes import FolderRoute, ManifestRoute, ManualRoute
from orchestrator.util.errors import UserError


def missing_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """``None`` when a dataset is at hand; otherwise the error that says how to get it.

    Drawn and scikit-learn datasets always are. A folder dataset needs its folder under ``data_root`` with the
    sub-folders its recipe wants; a manifest its table; any other ``data_root/<name>``, which ``data prepare`` makes
    in one step once everything is there.
    """
    route = entry.route
    if route.kind in BUNDLED_ROUTES:
        return None
    where = dataset_folder(entry, data_root)
    if data_root is None:
        return UserError(
            f"dataset {entry.name} lies in a folder, and no data root is given",
            hint=f"pass --data-root PATH or set {DATA_VARIABLE}; the images are then read from PATH/{where}"
            + ("" if isinstance(route, FolderRoute | ManifestRoute) else f"\n  {fetch_instructions(entry, None)}"),
        )
    if isinstance(route, FolderRoute):
        return _missing_folders(entry, route, where)
    if isinstance(route, ManifestRoute):
        if (where / route.file).is_file():
            return None
        return UserError(f"dataset {entry.name} is not there: {where / route.file} does not exist")
    if where.is_dir():
        return None
    begun = partial_folder(entry, data_root).is_dir()
    what = "only partly there" if begun else f"not there: {where} does not exist"
    return UserError(f"dataset {entry.name} is {what}", hint=fetch_instructions(entry, data_root))


def _missing_folders(entry: DatasetEntry, route: FolderRoute, where: Path) -> UserError | None:
    """What a folder dataset lacks: ``train/`` and ``test/``, or, for a recipe, ``all/`` or class folders right here."""
    official = entry.splits.recipe == "official"
    wanted = ("train", "test") if official else ("all",)
    if where.is_dir():
        absent = [name for name in wanted if not (where / name).is_dir()]
        if not absent or (not official and holds_class_folders(where)):
            return None
    need = " and ".join(f"{where / name}/" for name in wanted)
    return UserError(
        f"dataset {entry.name} is not there: it needs class folders of images in {need}",
        hint=f"point --data-root (or {DATA_VARIABLE}) to the folder that holds {route.folder}/"
        + (f"; the images come from {entry.source} ({entry.licence})" if entry.source else ""),
    )


def holds_class_folders(folder: Path) -> bool:
    """Whether a folder holds sub-folders that can be classes: neither hidden nor called like a part."""
    parts = ("train", "test", "all")
    return any(p.is_dir() and not p.name.startswith(".") and p.name not in parts for p in folder.iterdir())


def missing_weights(entry: BackboneEntry) -> UserError | None:
    """``None`` when a backbone's files are there or open_clip gets them; otherwise the error that names them."""
    paths = [architecture_path(entry)]
    if entry.weights.file is not None:
        paths.append(weights_path(entry))
    for path in paths:
        if path is not None and not path.is_file():
            ships = path.is_relative_to(grids_folder())
            return UserError(
                f"backbone {entry.name} is not there: {display_path(path)} does not exist",
                hint="it comes with the project: run from a complete checkout or reinstall"
                if ships
                else "put the file there, or correct the catalog's entry",
            )
    return None


def fetch_instructions(entry: DatasetEntry, data_root: Path | None) -> str:
    """The command that gets a dataset's images, what its user must do before, where they come from, their licence."""
    root = shlex.quote(str(data_root)) if data_root else "PATH"
    lines = [f"python -m orchestrator data prepare {entry.name} --data-root {root}"]
    if isinstance(entry.route, ManualRoute):
        lines = [f"no program can fetch it; by hand, into {root}/{entry.name}: {entry.route.instructions}"]
    elif entry.gated:
        lines.append(f"before that: {entry.gated}")
    if origin := image_origin(entry):
        lines.append(f"from {origin}")
    lines.append(f"licence: {entry.licence}")
    return "\n  ".join(lines)


def image_origin(entry: DatasetEntry) -> str:
    """Where a dataset's images are fetched from; empty where no program fetches them."""
    route = entry.route
    if route.kind == "torchvision":
        return f"torchvision.datasets.{route.dataset}"
    if route.kind == "huggingface":
        return f"https://huggingface.co/datasets/{route.repo}"
    if route.kind == "archive":
        return route.url + (f" ({route.checksum})" if route.checksum else "")
    return ""
