"""The file of a bundle: a zip archive with a manifest that has every file's size and checksum.

The archive's comment is the checksum of all bytes before it. So any changed byte is noticed, also between the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
_COMMENT = b"sha256:"
_COMMENT_SIZE = len(_COMMENT) + 64
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a bundle. ``file`` is a name in the archive, or ``archive`` for the archive itself."""

    file: str
    what: str


@dataclass(frozen=True)
class BundleFile:
    """The contents of a bundle as far as they can be read.

    Attributes:
        manifest: the parsed manifest; empty if it cannot be read.
        files: name -> content of every other file that is intact.
        problems: files that are missing, damaged or not in the manifest, and changes of the archive itself.
    """

    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]


def write_bundle(path: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a bundle atomically. Equal arguments give equal bytes with one version of zlib.

    Raises ``UserError`` if the file cannot be written.
    """
    listed = {name: {"size": len(content), "sha256": _digest(content)} for name, content in sorted(files.items())}
    text = json.dumps({"format": FORMAT, **manifest, "files": listed}, indent=1, ensure_ascii=False)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in [(MANIFEST, text.encode()), *sorted(files.items())]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
        archive.comment = b"-" * _COMMENT_SIZE  # the size stands before it, so it counts as well
    body = stream.getvalue()[:-_COMMENT_SIZE]
    with writing("the bundle", f"-o {path}"), replacing(path) as partial:
        partial.write_bytes(body + _COMMENT + _digest(body).encode())


def read_bundle(path: Path) -> BundleFile:
    """Read a bundle and check every byte of it. Raises ``UserError`` if there is no such file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"the bundle cannot be read: {error.strerror or error}", where=str(path)) from None
    changed = content[-_COMMENT_SIZE:] != _COMMENT + _digest(content[:-_COMMENT_SIZE]).encode()
    problems = []
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                try:
                    found[name] = archive.read(name)
                except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
                    problems.append(Problem(name, f"it is damaged: {error}"))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        what = f"it is no bundle, or its table of contents is damaged: {error}"
        return BundleFile({}, {}, (Problem("archive", what),))
    manifest = _manifest(found.pop(MANIFEST, b""))
    damaged = {problem.file for problem in problems}
    if not manifest and MANIFEST not in damaged:
        problems.append(Problem(MANIFEST, "it is missing, or it is no manifest of a bundle"))
    problems += [problem for problem in _compare(manifest.get("files", {}), found) if problem.file not in damaged]
    if changed and not problems:
        problems.append(Problem("archive", "bytes of the archive between its files were changed; its files were not"))
    wrong = {problem.file for problem in problems}
    return BundleFile(manifest, {name: own for name, own in found.items() if name not in wrong}, tuple(problems))


def _manifest(content: bytes) -> dict[str, Any]:
    """Return the parsed manifest; empty if it is not of this format."""
    try:
        manifest = json.loads(content)
        listed = manifest["files"]
        readable = all(isinstance(entry["sha256"], str) and isinstance(entry["size"], int) for entry in listed.values())
        return dict(manifest) if manifest["format"] == FORMAT and readable else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _compare(listed: Mapping[str, Any], found: Mapping[str, bytes]) -> Iterator[Problem]:
    """Return what differs between the manifest's list of files and the files."""
    for name, entry in listed.items():
        if name not in found:
            yield Problem(name, "the manifest lists it, but it is missing")
        elif (len(found[name]), _digest(found[name])) != (entry["size"], entry["sha256"]):
            yield Problem(name, "its checksum is not the one in the manifest")
    if listed:
        for name in found.keys() - listed.keys():
            yield Problem(name, "the manifest does not list it")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
