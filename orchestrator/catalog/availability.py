"""What is there and what is missing, with the step that gets it."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.catalog.backbones import BackboneEntry
from orchestrator.catalog.entries import DatasetEntry
from orchestrator.catalog.reading import grids_folder, shown
from orchestrator.catalog.references import architecture_path, weights_path
from orchestrator.catalog.routes import FolderRoute, ManualRoute
from orchestrator.errors import UserError

DATA_VARIABLE = "BOLT_DATA"
"""Environment variable that names the data root where no ``--data-root`` is given."""


def data_root_of(option: Path | str | None) -> Path | None:
    """The folder of real datasets: the option, else ``BOLT_DATA``, else none."""
    chosen = option or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def dataset_folder(entry: DatasetEntry, data_root: Path | None) -> Path:
    """The folder a dataset's files are in: its route's own, else the one of its name. Drawn datasets look at none."""
    folder = entry.route.folder if isinstance(entry.route, FolderRoute) else entry.name
    return (data_root or Path()) / folder


def missing_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """``None`` when a dataset is at hand; otherwise the error that says how to get it.

    Drawn and scikit-learn datasets always are. A folder dataset needs its folder under ``data_root`` with the
    sub-folders its recipe wants; any other needs ``data_root/<name>``.
    """
    route = entry.route
    if route.kind in ("toy", "sklearn"):
        return None
    where = dataset_folder(entry, data_root)
    if data_root is None:
        return UserError(
            f"dataset {entry.name} lies in a folder, and no data root is given",
            hint=f"pass --data-root PATH or set {DATA_VARIABLE}; the images are then read from PATH/{where}"
            + ("" if isinstance(route, FolderRoute) else f"\n  {_how_to_get(entry)}"),
        )
    if isinstance(route, FolderRoute):
        wanted = ("train", "test") if entry.splits.recipe == "official" else ("all",)
        absent = [name for name in wanted if not (where / name).is_dir()]
        if not where.is_dir() or absent:
            need = " and ".join(f"{where / name}/" for name in wanted)
            return UserError(
                f"dataset {entry.name} is not there: it needs class folders of images in {need}",
                hint=f"point --data-root (or {DATA_VARIABLE}) to the folder that holds {route.folder}/"
                + (f"; the images come from {entry.source} ({entry.licence})" if entry.source else ""),
            )
        return None
    if where.is_dir():
        return None
    return UserError(f"dataset {entry.name} is not there: {where} does not exist", hint=_how_to_get(entry))


def missing_weights(entry: BackboneEntry) -> UserError | None:
    """``None`` when a backbone's files are there or open_clip gets them; otherwise the error that names them."""
    paths = [architecture_path(entry)]
    if entry.weights.file is not None:
        paths.append(weights_path(entry))
    for path in paths:
        if path is not None and not path.is_file():
            ships = path.is_relative_to(grids_folder())
            return UserError(
                f"backbone {entry.name} is not there: {shown(path)} does not exist",
                hint="it comes with the project: run from a complete checkout or reinstall"
                if ships
                else "put the file there, or correct the catalog's entry",
            )
    return None


def _how_to_get(entry: DatasetEntry) -> str:
    """Where the images come from and what must be done with them; nothing is downloaded in this version."""
    route = entry.route
    if route.kind == "torchvision":
        origin = f"torchvision.datasets.{route.dataset} gets it"
    elif route.kind == "huggingface":
        origin = f"it is at https://huggingface.co/datasets/{route.repo}"
    elif route.kind == "archive":
        origin = f"it is at {route.url}" + (f" ({route.checksum})" if route.checksum else "")
    else:
        origin = route.instructions if isinstance(route, ManualRoute) else ""
    return (
        "automatic download is not in this version: get the images yourself, agree to their licence "
        f"({entry.licence}), and put them into <data root>/{entry.name}\n  {origin}"
    )
