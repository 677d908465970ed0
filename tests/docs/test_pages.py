"""The README is short, lines of code fit, and every field has a meaning."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_at_most_100_characters_a_line(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("sh", "bash") or block.startswith(("python ", "make ", "ray ")):
            lines = [re.split(r"\s+#", line)[0] for line in block.splitlines()]
            assert [line for line in lines if len(line) > 100] == []


def test_every_field_of_grid_and_catalog_files_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS / "tools"), *sys.path])
    page = runpy.run_path(str(DOCS / "tools" / "grid_files.py"))["page"]()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ?(.*?) ?\|$", page, re.MULTILINE)
    assert len(rows) > 80
    assert [name for name, meaning in rows if not meaning] == []


def test_every_public_name_of_bolt_is_on_the_page_of_the_library() -> None:
    import bolt

    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert [name for name in bolt.__all__ if not re.search(rf"\.{name}\b", page)] == []


def test_every_grid_of_the_project_is_on_the_page_of_grids() -> None:
    page = (DOCS / "grids.md").read_text(encoding="utf-8")
    table = page.split("## The project's grids")[1]
    grids = {path.stem for path in (ROOT / "grids").glob("*.yaml")} - {"prompts"}
    assert grids - set(re.findall(r"`([\w-]+)`", table)) == set()
