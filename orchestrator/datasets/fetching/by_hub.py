"""Fetch the needed files of a Hugging Face dataset repository, all of one commit, and check their checksums.

huggingface_hub resumes downloads. It keeps its state in the folder's ``.cache``, which is removed at the end.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bolt.image_folders import image_suffixes
from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.datasets.routes.parquet import shards_of
from orchestrator.datasets.state import Fetched, StagingArea
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, hub_explained
from orchestrator.util.identity import file_digest
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, RepoSibling

FILES_AT_ONCE = 4


def fetch_from_hub(entry: DatasetEntry, staging: StagingArea) -> Fetched:
    """Fetch the files of the entry's parts, at the commit that the route pins or at the newest commit.

    Raises ``UserError`` if the repository or a file cannot be fetched, or a file has the wrong checksum.
    """
    from huggingface_hub import hf_hub_download

    assert isinstance(entry.route, HuggingFaceRoute)
    repo, folder = entry.route.repo, staging.folder
    folder.mkdir(parents=True, exist_ok=True)
    revision, files = needed_files(entry)
    print_line(f"{entry.name}: {pluralize(len(files), 'file')} of {repo} at commit {revision[:8]}", staging.console)

    fetch = partial(hf_hub_download, repo, repo_type="dataset", revision=revision, local_dir=folder)
    with hub_explained(entry.route.origin, entry.name, entry.licence), ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(fetch, files))  # an error cancels the downloads that have not begun
    checksums = {}
    for path, file in files.items():
        found = file_digest(folder / path)
        if file.lfs and found != file.lfs.sha256:
            (folder / path).unlink()
            what = f"{path} has the wrong sha256: {found}, where the hub says {file.lfs.sha256}"
            raise UserError(what, hint="the file was removed; the same command fetches it again")
        checksums[path] = f"sha256:{found}"
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return revision, checksums


def hub_size(entry: DatasetEntry) -> int:
    """Return the bytes of the needed files. Raises ``UserError`` as :func:`needed_files`."""
    return sum(file.size or 0 for file in needed_files(entry)[1].values())


def needed_files(entry: DatasetEntry) -> tuple[str, dict[str, RepoSibling]]:
    """Return the commit; and the hub's descriptions of the files that hold the dataset's parts, by path.

    Raises ``UserError`` when the hub cannot be asked, or has no such files.
    """
    route = entry.route
    assert isinstance(route, HuggingFaceRoute)
    info = repository(route.repo, route.revision, route.origin, entry.name, entry.licence)
    there = {file.rfilename: file for file in info.siblings or ()}
    if route.layout == "class_folders":
        wanted = [path for path in there if Path(path).suffix.lower() in image_suffixes()]
    else:
        wanted = [path for part in route.splits for path in shards_of(there, route, part)]
    if not wanted or info.sha is None:
        what = f"{route.repo} holds no images in the layout {route.layout!r} at the revision {route.revision!r}"
        hint = "check repo, revision, layout and splits of the route"
        raise UserError(what, where=f"dataset {entry.name}, field route", hint=hint)
    return info.sha, {path: there[path] for path in wanted}


def repository(repo: str, revision: str | None, where: str, name: str = "", licence: str = "") -> DatasetInfo:
    """Ask the hub for the commit and the files of a dataset repository.

    Raises ``UserError`` as :func:`hub_explained`, if the hub cannot be asked.
    """
    from huggingface_hub import HfApi

    with hub_explained(where, name, licence):
        return HfApi().dataset_info(repo, revision=revision, files_metadata=True)
