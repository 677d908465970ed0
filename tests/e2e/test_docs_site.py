"""The documentation site is built without a warning, and works from a disk."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

from orchestrator.cli.app import app

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_link_leads_to_a_file_of_the_site_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    broken = []
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            target = urlsplit(link)
            if target.scheme or not target.path or page.name == "404.html":
                continue
            if not (page.parent / unquote(target.path)).exists():
                broken.append(f"{page.name}: {link}")
        assert re.findall(r'<(?:script|img|iframe)[^>]+src="https?:[^"]*"', text) == []
        assert re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:[^"]*"', text) == []
    assert broken == []


def test_search_finds_a_page_of_each_part_and_that_of_the_library_has_signatures(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    for name in ("index.html", "own-data.html", "commands.html", "grid-files.html", "python.html", "protocols.html"):
        assert f'"location":"{name}' in index
    page = re.sub(r"<[^>]+>", "", (site / "python.html").read_text(encoding="utf-8"))
    assert "load_backbone" in page
    assert "quick_gelu" in page
    assert ":class:" not in page


def test_page_of_commands_has_every_command_and_option(site: Path) -> None:
    sections = (site / "commands.html").read_text(encoding="utf-8").split("<h2 ")
    group: Any = get_command(app)
    for name, command in group.commands.items():
        below = getattr(command, "commands", None) or {"": command}
        for verb in below:
            anchor = "-".join(filter(None, (name, verb)))
            section = next(part for part in sections if part.startswith(f'id="{anchor}"'))
            for option in (one.opts[-1] for one in below[verb].params if one.param_type_name == "option"):
                assert re.search(rf"<code>(-\w, )?{option}\b", section)
