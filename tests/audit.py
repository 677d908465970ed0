"""``make audit``: known vulnerabilities of the installed packages, secrets in tracked files, dependencies' licences.

Exit code 0: nothing was found. 1: something was found. 3: the database of advisories could not be reached, so the
vulnerabilities are unknown; everything else is clean.
"""

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
"""Files that are not scanned, because every long word in them looks like a key: images, tables, tensors."""
NO_SECRETS = r"sha256|md5|blob: |checksum|digest|revision|@reproduce_failure|--[0-9a-f]{8}"
"""Lines that are not scanned, because their hexadecimal numbers are public: checksums, commits, ids of cells."""
KNOWN = Path(__file__).with_name("audit_known.json")
"""File -> hash -> kind of each reviewed finding that is no secret; written by `python -m tests.audit --known`."""
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|HPND|Unlicense|Zlib|MPL|Mozilla)\b", re.IGNORECASE
)
ACCEPTED_LICENCES = {"psycopg2-binary": "LGPL; linked and not changed; only the extra `cluster` needs it"}
"""Dependency -> why its licence is accepted although it is not permissive."""


@dataclass(frozen=True)
class Finding:
    """Text in a tracked file that looks like a secret. ``hash`` identifies the text, whatever its line."""

    file: str
    line: int
    kind: str
    hash: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}"


def secrets(folder: Path, *paths: str) -> list[Finding]:
    """Return all text that looks like a secret in the tracked files of a repository, or only in those at ``paths``."""
    listing = ["git", "-C", str(folder), "ls-files", "-z", "--", *paths]
    listed = subprocess.run(listing, capture_output=True, text=True, check=True)
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


def unreviewed(found: Sequence[Finding], known: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    return [one for one in found if one.hash not in known.get(one.file, {})]


def licences() -> list[str]:
    """Return the direct dependencies, extras included, whose licence is not known to be permissive."""
    wrong = []
    for requirement in metadata.requires("bolt-orchestrator") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
        if name == "bolt-orchestrator" or name in ACCEPTED_LICENCES:
            continue
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # its extra is not installed
        classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
        # Some packages put the whole text into the field. The licence's name is at its beginning.
        fields = [about[key][:200] for key in ("License-Expression", "License") if key in about]
        stated = " ".join([*fields, *classifiers])
        if not PERMISSIVE.search(stated):
            wrong.append(f"{name}: {stated.strip()[:80] or 'states no licence'}")
    return sorted(set(wrong))


def vulnerabilities() -> tuple[int, str]:
    """Return the exit code and the findings of pip-audit for the installed packages."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json", "--skip-editable"]
    done = subprocess.run(command, capture_output=True, text=True)
    return verdict(done.stdout, done.stderr)


def verdict(report: str, errors: str = "") -> tuple[int, str]:
    """Return the exit code for pip-audit's report, and the lines to print.

    pip-audit itself exits with 0 when its index knows none of the packages, for example a mirror without advisories.
    So a report that skips half of the packages or more does not pass.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return UNREACHABLE, (errors.strip().splitlines() or ["pip-audit printed nothing"])[-1]
    skipped = [package for package in packages if "skip_reason" in package]
    if 2 * len(skipped) >= len(packages):
        why = skipped[0]["skip_reason"] if skipped else "no package is installed"
        return UNREACHABLE, f"{len(skipped)} of {len(packages)} packages were skipped; {why}"
    known = [f"  {p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", [])]
    unchecked = [f"  not checked: {package['name']}" for package in skipped]
    return (FOUND if known else CLEAN), "\n".join([*known, *unchecked])


def main(folder: Path = ROOT) -> int:
    """Run all checks and print the findings; return the exit code."""
    code = CLEAN
    new = unreviewed(secrets(folder), json.loads(KNOWN.read_text()))
    for name, found, clean in (("secrets", new, "none found"), ("licences", licences(), "all permissive")):
        print(f"{name}: {clean}" if not found else f"{name}:", *found, sep="\n  " if found else "")
        code = FOUND if found else code
    outcome, lines = vulnerabilities()
    if outcome == UNREACHABLE:
        print(f"vulnerabilities: NOT CHECKED, the database of advisories cannot be reached: {lines[:200]}")
        return code or UNREACHABLE
    print("vulnerabilities: " + ("none known" if outcome == CLEAN else "found"), lines, sep="\n" if lines else "")
    return code or outcome


def write_known(folder: Path = ROOT) -> int:
    """Write all present findings to the list of known ones. Review the difference before committing it."""
    known: dict[str, dict[str, str]] = {}
    for one in secrets(folder):
        known.setdefault(one.file, {})[one.hash] = one.kind
    KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return CLEAN


if __name__ == "__main__":
    sys.exit(write_known() if sys.argv[1:] == ["--known"] else main())
