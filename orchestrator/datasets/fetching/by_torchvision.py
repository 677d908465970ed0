"""Fetch datasets with torchvision's addresses, checksums and unpacking, but with our own :func:`download`.

torchvision cannot resume a download, and it takes any existing folder for a complete dataset. Therefore
:func:`download`, which resumes, fetches the files into a folder of downloads. The folder that torchvision works in is
emptied before every attempt.
"""

import inspect
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import TorchvisionRoute
from orchestrator.datasets.fetching.by_archive import file_name
from orchestrator.datasets.fetching.download import download, quarantine
from orchestrator.datasets.routes.torchvision_sets import torchvision_class
from orchestrator.datasets.state import Fetched, StagingArea
from orchestrator.util.errors import UserError
from orchestrator.util.identity import file_digest, fingerprint

PACKED = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".zip")
"""Suffixes of archives that are deleted after unpacking. Some readers open ``.gz`` files, so these are kept."""


def fetch_by_torchvision(entry: DatasetEntry, staging: StagingArea) -> Fetched:
    """Let torchvision's class fetch and unpack the files, once for every set of arguments in the route.

    Raises ``UserError`` if a file cannot be fetched, has the wrong checksum or cannot be unpacked, or if the archives
    of a gated dataset are not there.
    """
    assert isinstance(entry.route, TorchvisionRoute)
    staging.clear()
    reader = torchvision_class(entry.route.dataset)
    fetches = "download" in inspect.signature(reader).parameters
    if not fetches:
        _place_by_hand(entry, staging, reader)
    fetched: dict[str, Path] = {}
    with _resumable(staging, fetched):
        for arguments in (one for sets in entry.route.arguments.values() for one in sets):
            try:
                reader(root=str(staging.folder), **arguments, **({"download": True} if fetches else {}))
            except (URLError, RuntimeError, ValueError, EOFError) as error:
                raise _explained(error, entry, fetched) from None
    for path in staging.folder.rglob("*"):
        # An archive is deleted only if the folder of downloads holds it too, which shows as a second hard link.
        if path.name.endswith(PACKED) and path.stat().st_nlink > 1:
            path.unlink()
    return None, {path.name: f"sha256:{file_digest(path)}" for path in fetched.values()}


@contextmanager
def _resumable(staging: StagingArea, fetched: dict[str, Path]) -> Iterator[None]:
    """Let torchvision download through :func:`download`. ``fetched`` collects address -> file, the newest file last.

    A private function of torchvision is replaced for this time. If a later version of torchvision does not call this
    function, torchvision downloads by itself.
    """
    from torchvision.datasets import utils

    def retrieve(url: str, filename: str | Path, *_: Any, **__: Any) -> None:
        kept = staging.downloads / f"{fingerprint(url)[:8]}-{file_name(url)}"
        try:
            download(url, kept, console=staging.console)
        except UserError as error:
            raise URLError(str(error)) from None  # torchvision tries the next mirror after this error
        fetched.pop(url, None)  # so that a file that is fetched again becomes the last
        fetched[url] = kept
        Path(filename).unlink(missing_ok=True)
        _link(kept, Path(filename))

    original = getattr(utils, "_urlretrieve", None)
    utils._urlretrieve = retrieve
    try:
        yield
    finally:
        utils._urlretrieve = original


def _explained(error: Exception, entry: DatasetEntry, fetched: dict[str, Path]) -> UserError:
    """Turn an error of torchvision into a ``UserError``. A file with a wrong checksum is renamed to ``NAME.wrong``."""
    reason = str(error.reason) if isinstance(error, URLError) else str(error)
    hint = "complete files are kept; the same command continues from there"
    if isinstance(error, RuntimeError) and "corrupted" in reason and fetched:
        last = list(fetched.values())[-1]
        reason = f"{last.name} has the wrong checksum (its md5 is {file_digest(last, 'md5')})"
        hint = f"the file was moved to {quarantine(last)}; the same command fetches it again"
    return UserError(f"{entry.name} cannot be fetched by torchvision: {reason}", hint=hint)


def _place_by_hand(entry: DatasetEntry, staging: StagingArea, reader: Any) -> None:
    """Link the archives of a gated dataset, which the user has downloaded, into the folder where they are unpacked.

    Raises ``UserError`` that names the missing archives.
    """
    names = [name for name, _ in getattr(inspect.getmodule(reader), "ARCHIVE_META", {}).values()]
    absent = [name for name in names if not (staging.downloads / name).is_file()]
    if absent or not names:
        what = f"{entry.name} is gated: {', '.join(absent) or 'its files'} cannot be fetched by a program"
        hint = f"put the archives into {staging.downloads}, and run the same command again; it unpacks them"
        raise UserError(what, hint=f"{entry.gated or entry.licence}\n  {hint}")
    for name in names:
        _link(staging.downloads / name, staging.folder / name)


def _link(source: Path, target: Path) -> None:
    """Make a hard link, or a copy on a disk without hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
