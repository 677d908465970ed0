"""Fetch one archive from a fixed address, check it and unpack it."""

from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import ArchiveRoute
from orchestrator.datasets.fetching.download import download
from orchestrator.datasets.fetching.unpack import unpack
from orchestrator.datasets.state import Fetched, StagingArea
from orchestrator.util.console import print_line
from orchestrator.util.identity import file_digest


def fetch_archive(entry: DatasetEntry, staging: StagingArea) -> Fetched:
    """Fetch and unpack the entry's archive. Raises ``UserError`` as :func:`download` and :func:`unpack` do."""
    assert isinstance(entry.route, ArchiveRoute)
    staging.clear()
    archive = staging.downloads / file_name(entry.route.url)
    download(entry.route.url, archive, checksum=entry.route.checksum, console=staging.console)
    print_line(f"unpacking {archive.name}", staging.console)
    unpack(archive, staging.folder)
    return None, {archive.name: entry.route.checksum or f"sha256:{file_digest(archive)}"}


def file_name(url: str) -> str:
    """Return a safe local file name, made of the last part of the address."""
    last = PurePosixPath(unquote(urlsplit(url).path)).name
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in last).lstrip(".") or "archive"
