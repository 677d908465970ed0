"""The audit finds a secret in a file, a licence that is not permissive, and an incomplete vulnerability report."""

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("detect_secrets", reason="the extra `audit` is not installed")

from tests import audit


def repository(folder: Path, text: str) -> Path:
    """Make a repository with one tracked file."""
    (folder / "settings.py").write_text(text)
    for words in (["init", "-q"], ["add", "settings.py"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_a_secret_in_a_file_is_found(tmp_path: Path) -> None:
    key = "AKIA" + "QWERTYUIOP123456"  # in two parts, so that this file does not fail the audit
    found = audit.secrets(repository(tmp_path, f'AWS = "{key}"\n'))
    assert [(one.file, one.line, one.kind) for one in found] == [("settings.py", 1, "AWS Access Key")]
    assert audit.unreviewed(found, {}) == found
    assert audit.unreviewed(found, {"settings.py": {found[0].hash: "looked at"}}) == []
    assert audit.unreviewed(found, {"other.py": {found[0].hash: "looked at"}}) == found


def test_the_known_findings_are_those_of_their_files() -> None:
    """Moving a file without updating audit_known.json once made `make audit` fail while all tests passed."""
    known = json.loads(audit.KNOWN.read_text())
    found = audit.secrets(audit.ROOT, *known)
    assert {(one.file, one.hash) for one in found} == {(file, one) for file, ones in known.items() for one in ones}


def test_a_private_key_is_found(tmp_path: Path) -> None:
    assert audit.secrets(repository(tmp_path, "-----BEGIN RSA " + "PRIVATE KEY-----\n"))


def test_checksums_and_cell_ids_are_no_secrets(tmp_path: Path) -> None:
    text = f'sha256 = "{"0c685df5" * 8}"\ncell = "fewshot.tiny.digits.k4.bolt.s1--45ab4fdd"\n'
    assert audit.secrets(repository(tmp_path, text)) == []


def test_the_direct_dependencies_have_permissive_licences() -> None:
    assert audit.licences() == []


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "AGPLv3", "Proprietary", "", "GNU Lesser General Public License"])
def test_other_licences_are_not_permissive(licence: str) -> None:
    assert not audit.PERMISSIVE.search(licence)


SAFE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-1"}]}


@pytest.mark.parametrize(
    ("packages", "code"),
    [
        ([SAFE, SAFE, SAFE], audit.CLEAN),
        ([SAFE, SAFE, SKIPPED], audit.CLEAN),
        ([SAFE, VULNERABLE], audit.FOUND),
        ([SKIPPED, SKIPPED], audit.UNREACHABLE),
        ([], audit.UNREACHABLE),
    ],
)
def test_skipped_packages_do_not_count_as_safe(packages: list[object], code: int) -> None:
    assert audit.verdict(json.dumps({"dependencies": packages}))[0] == code


def test_an_empty_report_does_not_pass() -> None:
    assert audit.verdict("", "ConnectionError: no route\n") == (audit.UNREACHABLE, "ConnectionError: no route")
