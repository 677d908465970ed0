"""The page of all commands and options, made from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from orchestrator.cli.app import app

PROGRAM = "python -m orchestrator"

HEADER = f"""# Commands

`{PROGRAM} COMMAND --help` prints the same. After `pip install .`, `orchestrator` is a shorter name of
`{PROGRAM}`. Some options name a variable, such as `BOLT_STORE`: its value holds where the option is not
given.
"""


def page() -> str:
    """Return the page as Markdown."""
    return HEADER + "\n" + "\n".join(_section(words, command) for words, command in commands(get_command(app)))


def commands(group: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its words: ``data add``."""
    for name, below in group.commands.items():
        full = f"{words} {name}".strip()
        if hasattr(below, "commands"):
            yield from commands(below, full)
        else:
            yield full, below


def _section(words: str, command: Any) -> str:
    """One command: usage, help, arguments and options."""
    context = command.make_context(f"{PROGRAM} {words}", [], resilient_parsing=True)
    pieces = " ".join(command.collect_usage_pieces(context))
    pieces = pieces.replace("{", "").replace("}", "").replace("[[", "[").replace("]]", "]")
    records = filter(None, (parameter.get_help_record(context) for parameter in command.get_params(context)))
    rows = [f"| `{_plain(names)}` | {_escaped(meaning)} |" for names, meaning in records]
    lines = [
        f"## {words}",
        "",
        "```",
        f"{PROGRAM} {words} {pieces}",
        "```",
        "",
        inspect.cleandoc(command.help or ""),
        "",
    ]
    return "\n".join([*lines, "| | |", "|---|---|", *rows, ""])


def _escaped(meaning: str) -> str:
    """Return a help text for a cell of a Markdown table, with its brackets as plain characters."""
    return meaning.replace("  [", " [").replace("[", "\\[").replace("]", "\\]").replace("|", "\\|")


def _plain(names: str) -> str:
    """Return an option and the kind of its value in capitals: ``--limit INTEGER``. An argument's name says its kind."""
    if not names.startswith("-"):
        return re.sub(r" <.*>$", "", names)
    kinds = {"str": "TEXT", "path": "PATH", "int": "INTEGER", "float": "NUMBER"}
    name, _, kind = names.partition(" <")
    word = re.sub(r"list\[(.*)\]", r"\1", kind.rstrip(">").lower()).split(" ")[0]
    return f"{name} {kinds.get(word, word.upper())}" if kind else names
