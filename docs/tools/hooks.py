"""Hooks of the documentation site: pages that are generated, and links to files outside of docs/.

``mkdocs.yml`` names this file; MkDocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import commands
import grid_files
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Page of the site -> the file at the root of the repository that it shows."""

GENERATED = {"commands.md": commands.page, "grid-files.md": grid_files.page}
"""Page of the site -> the function that writes its Markdown."""

FILES = "repository"
"""Folder of the site that holds copies of the linked files outside of docs/, such as cluster.yaml."""

LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
"""The target of a Markdown link or image, when it is a path: the file and the anchor."""

OWN_EXTENSIONS = (".md", ".png", ".svg")
"""Files of docs/ that the site shows; it copies all others that a page links to."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the copied pages, and every other file of the repository that a page links to."""
    for name, write in GENERATED.items():
        files.append(File.generated(config, name, content=write()))
    for name, source in COPIED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = [file for file in files if file.is_documentation_page()]
    for target in sorted({path for page in pages for path in _outside_links(page.content_string, page.src_uri)}):
        files.append(File.generated(config, f"{FILES}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at the site's own files."""
    return LINK.sub(lambda link: _site_link(link[1], page.file.src_uri) + (link[2] or ""), markdown)


def _repository_path(link: str, page: str) -> str:
    """Return the path from the repository's root of a link's target. ``page`` is the page's name in the site."""
    folder = "" if page in COPIED else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, link))


def _outside_links(markdown: str, page: str) -> set[str]:
    """Paths of the existing files that a page links to and that are neither pages nor images of docs/."""
    paths = {_repository_path(link[1], page) for link in LINK.finditer(markdown)}
    return {path for path in paths if _is_outside(path)}


def _is_outside(path: str) -> bool:
    shown = path in COPIED.values() or (path.startswith("docs/") and path.endswith(OWN_EXTENSIONS))
    return not shown and (ROOT / path).is_file()


def _site_link(link: str, page: str) -> str:
    """Return the link to the same file in the site. Broken links stay, so that the strict build reports them."""
    path = _repository_path(link, page)
    names = {source: name for name, source in COPIED.items()}
    if _is_outside(path):
        target = f"{FILES}/{path}"
    elif path in names:
        target = names[path]
    elif path.startswith("docs/"):
        target = path.removeprefix("docs/")
    else:
        return link
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
