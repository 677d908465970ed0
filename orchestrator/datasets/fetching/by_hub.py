"""Fetch a Hugging Face dataset repository: only the needed files, of one commit, with checked checksums.

huggingface_hub resumes downloads. It keeps its state in ``.cache`` inside the folder, which is removed at the end.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.datasets.fetching.download import digest_of
from orchestrator.datasets.fetching.staging import FetchResult, StagingArea
from orchestrator.datasets.routes.class_folders import IMAGE_SUFFIXES
from orchestrator.datasets.routes.shards import shards_of
from orchestrator.util.errors import UserError
from orchestrator.util.hub_errors import explain_hub_error

FILES_AT_ONCE = 4


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        path: inside the repository.
        size: bytes, ``None`` if the hub does not say.
        sha256: checksum of its content, for files that the hub stores as large files.
    """

    path: str
    size: int | None
    sha256: str | None


def fetch_from_hub(entry: DatasetEntry, staging: StagingArea, endpoint: str | None = None) -> FetchResult:
    """Fetch the files of the parts the entry names at its pinned commit, or at the newest one.

    Raises:
        UserError: the repository or a file cannot be fetched, or a file has the wrong checksum.
    """
    assert isinstance(entry.route, HuggingFaceRoute)
    staging.folder.mkdir(parents=True, exist_ok=True)
    revision, files = needed_files(entry, endpoint)
    staging.say(f"{entry.name}: {len(files)} files of {entry.route.repo} at {revision[:8]}")
    _download_all(entry, staging.folder, revision, [file.path for file in files], endpoint)
    checksums = {}
    for file in files:
        path = staging.folder / file.path
        found = digest_of(path, "sha256")
        if file.sha256 is not None and found != file.sha256:
            path.unlink()
            raise UserError(
                f"{file.path} has the wrong sha256: {found}, where the hub says {file.sha256}",
                hint="it was removed; the same command fetches it again",
            )
        checksums[file.path] = f"sha256:{found}"
    shutil.rmtree(staging.folder / ".cache", ignore_errors=True)
    return FetchResult(revision, checksums)


def _download_all(entry: DatasetEntry, folder: Path, revision: str, paths: list[str], endpoint: str | None) -> None:
    """Download a few files at a time. Raises ``UserError`` for the first that fails; running downloads are finished."""
    from huggingface_hub import hf_hub_download

    assert isinstance(entry.route, HuggingFaceRoute)
    repo = entry.route.repo

    def fetch(path: str) -> None:
        hf_hub_download(repo, path, repo_type="dataset", revision=revision, local_dir=folder, endpoint=endpoint)

    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        try:
            list(pool.map(fetch, paths))  # an error cancels the downloads that have not begun
        except Exception as error:
            raise _explained(error, entry) from error


def hub_size(entry: DatasetEntry) -> int | None:
    """Bytes of the files that are needed; ``None`` where the hub cannot be asked."""
    try:
        return sum(file.size or 0 for file in needed_files(entry, None)[1])
    except UserError:
        return None


def needed_files(entry: DatasetEntry, endpoint: str | None) -> tuple[str, list[RemoteFile]]:
    """The commit, and its files that hold the entry's parts. Raises ``UserError`` when the hub cannot be asked."""
    from huggingface_hub import HfApi

    route = entry.route
    assert isinstance(route, HuggingFaceRoute)
    try:
        info = HfApi(endpoint=endpoint).dataset_info(route.repo, revision=route.revision, files_metadata=True)
    except Exception as error:
        raise _explained(error, entry) from error
    there = {file.path: file for file in map(_remote_file, info.siblings or ())}
    if route.layout == "class_folders":
        wanted = [path for path in there if Path(path).suffix.lower() in IMAGE_SUFFIXES]
    else:
        wanted = [path for part in route.splits for path in shards_of(there, route, part)]
    if not wanted or info.sha is None:
        what = f"{route.repo} holds no images in the layout {route.layout!r}"
        if info.sha is None:
            what = f"the hub names no commit of {route.repo} at revision {route.revision!r}"
        hint = "check repo, revision, layout and splits of the route"
        raise UserError(what, where=f"dataset {entry.name}, field route", hint=hint)
    return info.sha, [there[path] for path in dict.fromkeys(wanted)]


def _remote_file(sibling: Any) -> RemoteFile:
    return RemoteFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None)


def _explained(error: Exception, entry: DatasetEntry) -> Exception:
    """The ``UserError`` for an error of huggingface_hub, with the dataset's page and licence; other errors as is."""
    assert isinstance(entry.route, HuggingFaceRoute)
    found = explain_hub_error(error, f"https://huggingface.co/datasets/{entry.route.repo}")
    if found is error or not isinstance(found, UserError):
        return found
    return UserError(f"{entry.name}: {found.what}", where=found.where, hint=f"{found.hint}\n  licence: {entry.licence}")
