"""Every command in the README and the docs has the options and the grids that it names."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from orchestrator.cli.app import app
from tests.helpers.command import invoke

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GRIDS = {path.stem for path in (ROOT / "grids").glob("*.yaml")}
COMMAND = re.compile(r"python -m orchestrator ((?:'[^'\n]*'|\"[^\"\n]*\"|[^\n`'\"#])*)")
"""A command up to a comment, or to the end of its line, inline code or string."""
EXAMPLES = {"seconds": "adding-a-command.md"}
"""Command -> the page that shows how to add it."""


def commands() -> list[tuple[str, str]]:
    """Return the page and the words of every command, without the explanation beside some commands."""
    found = {}
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        for match in COMMAND.finditer(text):
            words = re.sub(r"\s{2,}[a-z].*|\s{2,}$|\.$| [>|] .*", "", match[1]).strip()
            first = words.split(" ")[0]
            if first.islower() and "..." not in words.split(" ") and EXAMPLES.get(first) != page.name:
                found[words] = page.name
    return [(page, words) for words, page in found.items()]


def parse(command: Any, name: str, words: list[str]) -> None:
    """Parse the words as the command line does, and run nothing. Raises for an unknown command or option."""
    context = command.make_context(name, list(words))
    if hasattr(command, "commands"):
        left = [*getattr(context, "_protected_args", ()), *context.args]  # a group may put a command before its words
        below, found, rest = command.resolve_command(context, left)
        parse(found, below, rest)


def test_the_commands_have_these_options() -> None:
    whole, wrong, found = get_command(app), [], commands()
    assert len(found) > 100
    for page, words in found:
        try:
            parse(whole, "orchestrator", shlex.split(words))
        except Exception as error:  # all wrong commands are named, not the first alone
            wrong.append((page, words, str(error)))
    assert wrong == []


def planned() -> list[str]:
    """Return the options with which the pages plan or run a grid of the project, once each."""
    found = set()
    for _, words in commands():
        verb, *rest = shlex.split(words)
        if verb in ("grid", "plan") and rest[0] in GRIDS and not {"--catalog", "--store", "--data-root"} & {*rest}:
            kept = shlex.split(shlex.join(rest).replace("--address auto", ""))
            kept = [word for word in kept if word not in ("--plan", "--local")]
            examples = ("prototype", "wardrobe")  # a method and a dataset of one's own
            if kept != ["full"] and not any(name in words for name in examples):  # a test expands `full`
                found.add(shlex.join(kept))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("words", planned())
def test_grid_of_a_page_can_be_planned(words: str, tmp_path: Path) -> None:
    limit = [] if "--limit" in words else ["--limit", "3"]
    said = invoke("plan", *shlex.split(words), *limit, "--store", tmp_path / "runs")
    assert "to do" in said or "to_do" in said


def test_commands_that_only_read_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "eurosat" in invoke("data", "list")
    assert "vit-b-32" in invoke("backbones", "list")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_make_targets_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    blocks = "\n".join(re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    typed = {*re.findall(r"`make ([a-z]+)`", text), *re.findall(r"^\$? ?make ([a-z]+)", blocks, re.MULTILINE)}
    assert typed <= targets
    folders = "benchmarks|bolt|docs|examples|grids|orchestrator|tests"
    scripts = re.findall(rf"\b((?:{folders})/[\w/-]+\.(?:py|yaml|csv|md))\b", text)
    new = {"grids/NAME.yaml", "grids/my-grid.yaml", "orchestrator/cli/seconds.py", "orchestrator/tracks/from_test.py"}
    assert [script for script in scripts if not (ROOT / script).exists() and script not in new] == []


def test_commands_in_the_table_of_the_readme_exist() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Commands\n")[1].split("\n## ")[0]
    group: Any = get_command(app)
    columns = "".join(line.split("|")[1] for line in table.splitlines() if line.count("|") == 3)
    named = re.findall(r"`([a-z]+)`", columns)
    assert len(named) > 12
    assert set(named) <= set(group.commands)
