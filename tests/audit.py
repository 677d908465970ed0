"""``make audit``: known vulnerabilities of what is installed, secrets in tracked files, licences of the dependencies.

Exit code 0: nothing found. 1: something was. 3: the database of advisories could not be reached, so that nothing can be
said of vulnerabilities; everything else was looked at and found clean.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CLEAN, FOUND, UNREACHABLE = 0, 1, 3

UNSCANNED = r"\.(png|jpg|pdf|csv|safetensors|npy|svg|woff2)$"
"""Files in which every long word looks like a key: images, tables of numbers, tensors."""

NO_SECRETS = r"sha256|md5|checksum|digest|revision|@reproduce_failure|--[0-9a-f]{8}"
"""Lines with hexadecimal numbers that are public: checksums of data sets, commits, addresses of cells."""

KNOWN = Path(__file__).with_name("audit_known.json")
"""File -> hash -> what was looked at and is no secret; `python -m tests.audit --known` writes it anew."""

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|HPND|Unlicense|Zlib|MPL|Mozilla)\b", re.IGNORECASE
)
BY_READING = {"psycopg2-binary": "LGPL, linked and not changed, of the extra `cluster` alone"}
"""Dependencies whose licence was read and is accepted though it is not permissive, and why."""


@dataclass(frozen=True)
class Finding:
    """Something in a tracked file that looks like a secret; ``hash`` stands for it wherever it moves in the file."""

    file: str
    line: int
    kind: str
    hash: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}"


def secrets(folder: Path) -> list[Finding]:
    """Everything in a repository's tracked files that looks like a secret."""
    listed = subprocess.run(["git", "-C", str(folder), "ls-files", "-z"], capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and not re.search(UNSCANNED, name)]
    names = [name for name in names if (folder / name).is_file() and folder / name != KNOWN]
    command = [sys.executable, "-m", "detect_secrets", "scan", "--exclude-lines", NO_SECRETS, "--", *names]
    scanned = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    found = json.loads(scanned.stdout)["results"]
    return [
        Finding(name, one["line_number"], one["type"], one["hashed_secret"])
        for name, ones in sorted(found.items())
        for one in ones
    ]


def unknown(found: Sequence[Finding], known: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """What was not looked at yet."""
    return [one for one in found if one.hash not in known.get(one.file, {})]


def licences() -> list[str]:
    """The direct dependencies, extras included, whose licence is not known to be permissive."""
    wrong = []
    for requirement in metadata.requires("bolt-orchestrator") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
        if name == "bolt-orchestrator" or name in BY_READING:
            continue
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
        # Some put the whole text into the field; its name stands in the beginning.
        fields = [about[key][:200] for key in ("License-Expression", "License") if key in about]
        said = " ".join([*fields, *classifiers])
        if not PERMISSIVE.search(said):
            wrong.append(f"{name}: {said.strip()[:80] or 'says no licence'}")
    return sorted(set(wrong))


def vulnerabilities() -> tuple[int, str]:
    """The exit code, and what pip-audit says of the packages of this Python."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json", "--skip-editable"]
    done = subprocess.run(command, capture_output=True, text=True)
    return verdict(done.stdout, done.stderr)


def verdict(report: str, said: str = "") -> tuple[int, str]:
    """The exit code of pip-audit's report, and what to say.

    pip-audit itself exits with 0 when the index that it asks knows none of the packages, as a mirror without advisories
    does; a report of packages that were mostly passed over says nothing, so it does not pass.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return UNREACHABLE, (said.strip().splitlines() or ["pip-audit said nothing"])[-1]
    over = [package for package in packages if "skip_reason" in package]
    if 2 * len(over) >= len(packages):
        why = over[0]["skip_reason"] if over else "no package is installed"
        return UNREACHABLE, f"{len(over)} of {len(packages)} packages were passed over; {why}"
    known = [f"  {p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", [])]
    passed = [f"  not checked: {package['name']}" for package in over]
    return (FOUND if known else CLEAN), "\n".join([*known, *passed])


def main(folder: Path = ROOT) -> int:
    """Look at everything and say what was found; the exit code."""
    code = CLEAN
    new = unknown(secrets(folder), json.loads(KNOWN.read_text()))
    for name, found, clean in (("secrets", new, "none found"), ("licences", licences(), "all permissive")):
        print(f"{name}: {clean}" if not found else f"{name}:", *found, sep="\n  " if found else "")
        code = FOUND if found else code
    outcome, said = vulnerabilities()
    if outcome == UNREACHABLE:
        print(f"vulnerabilities: NOT CHECKED, the database of advisories cannot be reached: {said[:200]}")
        return code or UNREACHABLE
    print("vulnerabilities: " + ("none known" if outcome == CLEAN else "found"), said, sep="\n" if said else "")
    return code or outcome


def write_known(folder: Path = ROOT) -> int:
    """Take all that is found now as known. Look at the difference before it is committed."""
    known: dict[str, dict[str, str]] = {}
    for one in secrets(folder):
        known.setdefault(one.file, {})[one.hash] = one.kind
    KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return CLEAN


if __name__ == "__main__":
    sys.exit(write_known() if sys.argv[1:] == ["--known"] else main())
