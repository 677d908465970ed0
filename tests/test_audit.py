"""The audit finds what it is for: a planted secret, a licence that is none of ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("detect_secrets", reason="the extra `audit` is not installed")

from tests import audit


def repository(folder: Path, text: str) -> Path:
    """A repository with one tracked file."""
    (folder / "settings.py").write_text(text)
    for words in (["init", "-q"], ["add", "settings.py"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_a_planted_secret_is_found(tmp_path: Path) -> None:
    key = "AKIA" + "QWERTYUIOP123456"  # put together here, so that this file does not fail the audit
    found = audit.secrets(repository(tmp_path, f'AWS = "{key}"\n'))
    assert [(one.file, one.line, one.kind) for one in found] == [("settings.py", 1, "AWS Access Key")]
    assert audit.unknown(found, {}) == found
    assert audit.unknown(found, {"settings.py": {found[0].hash: "looked at"}}) == []
    assert audit.unknown(found, {"other.py": {found[0].hash: "looked at"}}) == found


def test_this_project_holds_nothing_that_was_not_looked_at() -> None:
    """A module was divided, and what is known of it went by its old name: `make audit` failed, and nothing here did."""
    assert audit.unknown(audit.secrets(audit.ROOT), json.loads(audit.KNOWN.read_text())) == []


def test_a_private_key_is_found(tmp_path: Path) -> None:
    assert audit.secrets(repository(tmp_path, "-----BEGIN RSA " + "PRIVATE KEY-----\n"))


def test_checksums_and_addresses_are_no_secrets(tmp_path: Path) -> None:
    text = f'sha256 = "{"0c685df5" * 8}"\ncell = "fewshot.tiny.digits.k4.bolt.s1--45ab4fdd"\n'
    assert audit.secrets(repository(tmp_path, text)) == []


def test_what_is_known_is_of_files_that_are_there() -> None:
    known = json.loads(audit.KNOWN.read_text())
    assert [name for name in known if not (audit.ROOT / name).is_file()] == []


def test_the_direct_dependencies_are_permissive() -> None:
    assert audit.licences() == []


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "AGPLv3", "Proprietary", "", "GNU Lesser General Public License"])
def test_other_licences_are_told_apart(licence: str) -> None:
    assert not audit.PERMISSIVE.search(licence)


FINE = {"name": "a", "version": "1", "vulns": []}
OVER = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-1"}]}


@pytest.mark.parametrize(
    ("packages", "code"),
    [
        ([FINE, FINE, FINE], audit.CLEAN),
        ([FINE, FINE, OVER], audit.CLEAN),
        ([FINE, BAD], audit.FOUND),
        ([OVER, OVER], audit.UNREACHABLE),
        ([], audit.UNREACHABLE),
    ],
)
def test_packages_that_were_not_looked_at_do_not_pass_for_safe(packages: list[object], code: int) -> None:
    assert audit.verdict(json.dumps({"dependencies": packages}))[0] == code


def test_no_report_at_all_does_not_pass() -> None:
    assert audit.verdict("", "ConnectionError: no route\n") == (audit.UNREACHABLE, "ConnectionError: no route")
