"""Datasets that torchvision can fetch: its addresses, its checksums and its unpacking, this project's downloading.

torchvision fetches a file in one go and takes a folder that is there for a whole one. Here its files come through
:func:`download`, so that they resume, and are kept outside the folder it works in, which is made anew after every
interruption.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import TorchvisionRoute
from orchestrator.datasets.fetching.by_archive import file_name
from orchestrator.datasets.fetching.download import digest_of, download
from orchestrator.datasets.fetching.staging import FetchResult, StagingArea
from orchestrator.util.errors import UserError
from orchestrator.util.identity import fingerprint

PACKED = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".zip")
"""Archives that nobody reads once they are unpacked. Not ``.gz`` alone: some readers open such files themselves."""


def fetch_by_torchvision(entry: DatasetEntry, staging: StagingArea) -> FetchResult:
    """Instantiate the class once per argument set, fetching what is missing.

    Raises:
        UserError: a file cannot be fetched, has the wrong checksum or cannot be unpacked, or must be got by hand.
    """
    import torchvision.datasets

    assert isinstance(entry.route, TorchvisionRoute)
    staging.clear()
    reader = getattr(torchvision.datasets, entry.route.dataset, None)
    if reader is None:
        raise UserError(f"torchvision has no dataset class {entry.route.dataset!r}")
    fetches = "download" in inspect.signature(reader).parameters
    if not fetches:
        _place_by_hand(entry, staging, reader)
    fetched: dict[str, Path] = {}
    with _resumable(staging, fetched):
        for arguments in (one for sets in entry.route.arguments.values() for one in sets):
            try:
                reader(root=str(staging.folder), **arguments, **({"download": True} if fetches else {}))
            except UserError:
                raise
            except (URLError, RuntimeError, ValueError, EOFError) as error:
                raise _explained(error, entry, fetched) from None
    for path in staging.folder.rglob("*"):
        if path.name.endswith(PACKED) and path.stat().st_nlink > 1:  # the other name is in downloads
            path.unlink()
    return FetchResult(None, {path.name: f"sha256:{digest_of(path, 'sha256')}" for path in fetched.values()})


@contextlib.contextmanager
def _resumable(staging: StagingArea, fetched: dict[str, Path]) -> Iterator[None]:
    """Let torchvision fetch through :func:`download`; ``fetched`` grows by address -> file, the last one last.

    Where a later torchvision has no such function any more, its own downloading serves.
    """
    from torchvision.datasets import utils

    original = getattr(utils, "_urlretrieve", None)

    def retrieve(url: str, filename: str | Path, *_: Any, **__: Any) -> None:
        kept = staging.downloads / f"{fingerprint(url)[:8]}-{file_name(url)}"
        try:
            download(url, kept, console=staging.console)
        except UserError as error:
            raise URLError(str(error)) from None  # what torchvision expects before it tries the next mirror
        fetched.pop(url, None)
        fetched[url] = kept
        Path(filename).unlink(missing_ok=True)
        _link(kept, Path(filename))

    if original is None:
        yield
        return
    utils._urlretrieve = retrieve
    try:
        yield
    finally:
        utils._urlretrieve = original


def _explained(error: Exception, entry: DatasetEntry, fetched: dict[str, Path]) -> UserError:
    """torchvision's words for it; a file it finds corrupt is set aside, so that it is fetched anew."""
    reason = str(error.reason) if isinstance(error, URLError) else str(error)
    hint = "what is whole is kept; the same command goes on from there"
    if isinstance(error, RuntimeError) and "corrupted" in reason and fetched:
        last = list(fetched.values())[-1]
        aside = last.with_name(f"{last.name}.wrong")
        reason = f"{last.name} has the wrong checksum (its md5 is {digest_of(last, 'md5')})"
        last.replace(aside)
        hint = f"it was set aside as {aside}; the same command fetches it anew"
    return UserError(f"{entry.name} cannot be fetched by torchvision: {reason}", hint=hint)


def _place_by_hand(entry: DatasetEntry, staging: StagingArea, reader: Any) -> None:
    """Link the archives of a gated dataset from where its user put them. Raises ``UserError`` naming those missing."""
    archives = getattr(inspect.getmodule(reader), "ARCHIVE_META", {})
    names = [name for name, _ in archives.values()]
    absent = [name for name in names if not (staging.downloads / name).is_file()]
    if absent or not names:
        raise UserError(
            f"{entry.name} is gated: {', '.join(absent) or 'its files'} cannot be fetched by a program",
            hint=f"{entry.gated or entry.licence}\n  put the files as they are into {staging.downloads}, "
            "and run the same command again; it unpacks them",
        )
    for name in names:
        _link(staging.downloads / name, staging.folder / name)


def _link(source: Path, target: Path) -> None:
    """A second name for a file; a copy on a disk that knows no second names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
