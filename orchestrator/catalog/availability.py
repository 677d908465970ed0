"""Find out which images and weights of a grid are not on this machine, and say how to get them."""

import shlex
from pathlib import Path

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from orchestrator.catalog.backbone_entry import BackboneEntry, CheckpointEntry
from orchestrator.catalog.dataset_entry import DATA_VARIABLE, DatasetEntry, dataset_folder, partial_folder
from orchestrator.catalog.location import display_path, grids_folder
from orchestrator.util.errors import UserError

DASSL_PAGE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
"""The page that describes the folders of the few-shot benchmark, with links to the images and the split files."""


def missing_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """Return ``None`` if a dataset's images are on this machine, otherwise an error that says how to get them.

    Drawn datasets and datasets of scikit-learn need no files. The route of any other dataset says what is missing.
    """
    if entry.is_bundled:
        return None
    folder = dataset_folder(entry, data_root)
    if data_root is None:
        hint = f"pass --data-root PATH or set {DATA_VARIABLE}; the images are then read from PATH/{folder}"
        if entry.is_prepared:
            hint += f"\n  {_how_to_get(entry, None)}"
        return UserError(f"dataset {entry.name} is read from a folder, and no data root is given", hint=hint)
    if not (absent := entry.route.missing(folder, entry.splits.recipe)):
        return None
    begun = entry.is_prepared and partial_folder(entry, data_root).is_dir()
    state = "only partly there" if begun else f"not there: {absent}"
    return UserError(f"dataset {entry.name} is {state}", hint=_how_to_get(entry, data_root))


def _how_to_get(entry: DatasetEntry, data_root: Path | None) -> str:
    """Return lines that say how to get a dataset's images, with their origin and licence; empty for a table."""
    route, root = entry.route, shlex.quote(str(data_root)) if data_root else "PATH"
    if route.kind == "manifest":
        return ""
    if route.kind == "folder":
        origin = f"; the images come from {entry.source} ({entry.licence})" if entry.source else ""
        return f"point --data-root (or {DATA_VARIABLE}) to the folder that holds {route.folder}/{origin}"
    if route.kind == "dassl":
        how = f"CoOp's DATASETS.md says how to get the images: {entry.source or DASSL_PAGE}"
    elif route.kind == "manual":
        how = f"no program can fetch the images; by hand, into {root}/{entry.name}: {route.instructions}"
    else:
        how = f"python -m orchestrator data prepare {entry.name} --data-root {root}"
        how += f"\n  before that: {entry.gated}" if entry.gated else ""
    origin = f"from {route.origin}" if route.origin else ""
    return "\n  ".join(filter(None, (how, origin, f"licence: {entry.licence}")))


def missing_weights(entry: BackboneEntry) -> UserError | None:
    """Return an error that names the first missing file of a backbone; ``None`` if no file is missing.

    Files that a program fetches do not count as missing.
    """
    for path in (entry.architecture_path, entry.weights.path):
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
