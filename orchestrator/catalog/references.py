"""Make the identities by which cells name catalog entries, such as datasets and backbones.

An identity is a digest of everything in an entry and in its files that can change a result.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from bolt.clip.checkpoint_files import checkpoint_files, files_digest
from bolt.clip.input_size import InputSize
from orchestrator.catalog.backbone_entry import BackboneEntry, missing_weights
from orchestrator.catalog.dataset_entry import DatasetEntry, dataset_folder, excluded_images
from orchestrator.catalog.location import display_path
from orchestrator.catalog.routes import DasslRoute, ManifestRoute, OwnRoute, files_of
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.util.errors import UserError, explained
from orchestrator.util.identity import fingerprint

LOADER_VERSION = 2
"""Version of the code that reads datasets. Raise it whenever that code returns other images, labels or class names."""

DRAWS_FOLDER = "split_fewshot"
"""The sub-folder of a dataset's folder in which Dassl and 2SFS, two other projects, store the images that they drew."""


def dataset_ref(entry: DatasetEntry, data_root: Path | None) -> DatasetRef:
    """Return the identity of a dataset: a digest of everything that decides its images, labels and prompts.

    For class folders and for a table, the relative paths and sizes of all files in the dataset's folder are part of the
    identity, and so is the content of the table. A plan that is made without these files therefore names other cells
    than a run with the files. The digest ``contents`` of the entry, if it has one, and the list of excluded images are
    also part of the identity.
    """
    content: dict[str, Any] = {
        "loader": LOADER_VERSION,
        "route": entry.route.model_dump(exclude={"folders", "images", "blob"}),
        "splits": entry.splits.model_dump(),
        "class_names": entry.class_names,
        "prompts": entry.prompts,
        "mirrorable": entry.mirrorable,
    }
    added_later = ("renamed", "exif_rotation", "bands", "range", "contents")  # an empty field is left out
    content |= {name: value for name in added_later if (value := getattr(entry, name))}
    if entry.route.kind == "toy":
        from orchestrator.drawn_world.tasks import WORLD_VERSION

        content["world"] = WORLD_VERSION
    if isinstance(entry.route, OwnRoute):
        content["files"] = None if data_root is None else _listing(data_root / entry.route.folder)
    if isinstance(entry.route, ManifestRoute):  # paths and sizes do not show a change of labels
        table = dataset_folder(entry, data_root) / entry.route.file
        files = [table] if table.suffix.lower() == ".tar" else files_of(table)
        content["table"] = cached_digest(*files) if all(map(Path.is_file, files)) else None
    if isinstance(entry.route, DasslRoute):
        content["table"] = split_blob(entry.route, dataset_folder(entry, data_root))
    if excluded := excluded_images(entry, data_root):
        content["excluded"] = sorted(excluded)
    return DatasetRef(entry.name, fingerprint(content))


def split_blob(route: DasslRoute, folder: Path) -> str | None:
    """Return the git ids, joined by ``+``, of the files in ``folder`` that split a dataset's images.

    If no such file is there, return the id of the published split file, as stated in the catalog; ``None`` if the
    catalog does not state it.
    """
    texts = [path.read_bytes() for name in route.split_files if (path := folder / name).is_file()]
    ids = [hashlib.sha1(b"blob %d\0%b" % (len(text), text)).hexdigest() for text in texts]
    return "+".join(ids) or route.blob


def draw_files(folder: Path, shots: int, seed: int) -> tuple[Path, ...]:
    """Return the files that list ``shots`` images per class: Dassl's pickle or, without it, 2SFS's ``.jsonl`` files.

    Raises ``UserError`` if there are none.
    """
    stem = f"shot_{shots}-seed_{seed}"
    for names in ((f"{stem}.pkl",), (f"{stem}_train.jsonl", f"{stem}_val.jsonl")):
        if found := tuple(path for name in names if (path := folder / DRAWS_FOLDER / name).is_file()):
            return found
    hint = "Dassl writes such files when it runs; or give the protocol another support_draw"
    if present := sorted(path.name for path in (folder / DRAWS_FOLDER).glob("shot_*")):
        hint = f"there are {', '.join(present[:4])}"
    what = f"there is no draw of {shots} images a class with seed {seed}: neither {stem}.pkl nor {stem}_train.jsonl"
    raise UserError(what, where=str(folder / DRAWS_FOLDER), hint=hint)


def listed_draw(entry: DatasetEntry, data_root: Path | None, shots: int, seed: int) -> str:
    """Return the digest of the files that list ``shots`` images per class, see :func:`draw_files`.

    If there are no such files, return ``absent`` and raise no error, because a grid can be planned without data.
    """
    with suppress(UserError):
        return cached_digest(*draw_files(dataset_folder(entry, data_root), shots, seed))
    return "absent"


def own_splits(entries: Iterable[DatasetEntry], data_root: Path | None) -> tuple[str, ...]:
    """Return a line that names the split files which differ from the published files; empty if no file differs."""
    own = [
        f"{entry.route.file} of {entry.name}"
        for entry in entries
        if isinstance(entry.route, DasslRoute) and entry.route.blob
        if split_blob(entry.route, dataset_folder(entry, data_root)) != entry.route.blob
    ]
    line = f"split files that differ from the published files, so splits and draws differ too: {', '.join(own)}"
    return (line,) if own else ()


def backbone_ref(entry: BackboneEntry) -> BackboneRef:
    """Return the identity of a backbone: a digest of architecture, weights, preprocessing, activation and precision.

    The digest covers the content of a user's weights file, and the name of weights that are fetched. Raises
    ``UserError`` if the model configuration cannot be read.
    """
    weights: Any = {"pretrained": entry.weights.pretrained}
    if entry.weights.hub:
        weights = {"hub": entry.weights.hub, "file": entry.weights.file}
    elif (path := entry.weights.path) is not None:
        weights = {"sha256": None if missing_weights(entry) else checkpoint_digest(path)}
    content = {
        "architecture": _architecture(entry),
        "weights": weights,
        "quick_gelu": entry.quick_gelu,
        "image_size": entry.image_size,
        "precision": entry.precision,
    }
    if entry.input_size != InputSize(entry.image_size) or entry.mean or entry.std:
        content["preprocessing"] = [entry.input_size, entry.mean, entry.std]
    return BackboneRef(entry.name, fingerprint(content))


def _architecture(entry: BackboneEntry) -> Any:
    if (path := entry.architecture_path) is None:
        return entry.architecture
    what = f"the architecture of {entry.name} cannot be read"
    with explained(OSError, ValueError, what=what, where=display_path(path)):
        return json.loads(path.read_text(encoding="utf-8"))


def _listing(folder: Path) -> list[tuple[str, int]] | None:
    """Return relative path and size of every file below a folder, sorted; ``None`` if there is no such folder.

    Links are followed. Hidden files and folders, broken links, and links to a folder that holds the link are left out.
    """
    if not folder.is_dir():
        return None
    found = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        here = Path(place)
        entered = {os.path.realpath(above) for above in (here, *here.parents) if above.is_relative_to(folder)}
        folders[:] = [name for name in folders if name[0] != "." and os.path.realpath(here / name) not in entered]
        paths = [here / name for name in files if name[0] != "."]
        found += [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths if path.exists()]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def cached_digest(*paths: Path) -> str:
    """Return the SHA-256 of the content of one or several files, in the given order.

    The digest is cached until the size or the time stamp of a file changes.
    """
    stats = (path.stat() for path in paths)
    return _digest(paths, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))


@cache
def _digest(paths: tuple[Path, ...], state: tuple[tuple[int, int], ...]) -> str:
    return files_digest(paths)


def checkpoint_digest(path: Path) -> str:
    """Return the SHA-256 of a checkpoint: of its file, or of its parts in their order.

    Raises ``UnreadableCheckpoint`` if there is no such checkpoint.
    """
    return cached_digest(*checkpoint_files(path))
