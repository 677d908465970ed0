"""The files of requirements/ name a version with hashes for all that pyproject.toml asks for."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FILES = {"run": ("engine",), "test": ("test",)}
"""File of requirements/ -> the extras that it covers."""


@cache
def locked(file: str) -> dict[str, list[Requirement]]:
    """Return each package's lines in a file; there are several where the version depends on the platform."""
    found: dict[str, list[Requirement]] = {}
    for entry in entries(file):
        requirement = Requirement(entry.split("--hash")[0])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def entries(file: str) -> list[str]:
    """Return one line for each package, with its version, marker and hashes, without comments."""
    text = (ROOT / "requirements" / f"{file}.txt").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return lines.replace("\\\n", " ").splitlines()


def asked(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield the requirements in pyproject.toml: to build, to run, and of some extras."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    yield from map(Requirement, (*read["dependency-groups"]["build"], *read["project"]["dependencies"]))
    left = list(extras)
    while left:
        for requirement in map(Requirement, read["project"]["optional-dependencies"][left.pop()]):
            if requirement.name == read["project"]["name"]:
                left += requirement.extras
            else:
                yield requirement


@pytest.mark.parametrize("file", FILES)
def test_every_dependency_has_a_version_within_its_bounds(file: str) -> None:
    """`make lock` writes the files anew after a change of pyproject.toml."""
    for requirement in asked(FILES[file]):
        lines = locked(file).get(canonicalize_name(requirement.name), [])
        assert lines, f"{requirement.name} is not in requirements/{file}.txt: run `make lock`"
        for line in lines:
            (pin,) = line.specifier
            assert pin.operator == "=="
            assert requirement.specifier.contains(pin.version), f"{line.name} {pin.version}: run `make lock`"


@pytest.mark.parametrize(("file", "least"), [("run", 100), ("test", 100), ("uv", 1)])
def test_every_line_is_a_version_with_hashes_and_nothing_else(file: str, least: int) -> None:
    form = re.compile(r"[a-z0-9-]+==[^ ;]+( ; [^-]+?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [entry[:80] for entry in entries(file) if not form.fullmatch(entry)] == []
    assert len(entries(file)) >= least
    text = (ROOT / "requirements" / f"{file}.txt").read_text(encoding="utf-8")
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links|/tmp|/home", text)


def test_the_tests_run_with_the_versions_of_the_demo() -> None:
    assert {name for name in locked("run") if locked("run")[name] != locked("test").get(name)} <= {"colorama"}
    assert {line.specifier for line in locked("run")["colorama"]} == {
        line.specifier for line in locked("test")["colorama"]
    }
