"""Text of other people is shown: a terminal obeys none of it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from orchestrator.util.console import Console, plain_table, print_line, printable

CLEAR, TITLE = "\x1b[2J", "\x1b]0;mine\x07"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_are_shown_whatever_prints_them(is_terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=200, color_system=None)
    table = plain_table("name")
    table.add_row(f"row {CLEAR}")
    table.add_row(Text(f"text {CLEAR}", style="red"))
    print_line(f"line {CLEAR}{TITLE}\x9b2J", console, "red")
    console.print(table)
    shown = screen.getvalue()
    assert not any(sign in shown for sign in (CLEAR, TITLE, "\x9b", "\x07"))
    assert all(f"{kind} \\x1" in shown for kind in ("line", "row", "text"))


def test_colours_of_this_project_stay() -> None:
    screen = io.StringIO()
    print_line("failed", Console(file=screen, force_terminal=True, color_system="standard"), "red")
    assert "\x1b[31mfailed" in screen.getvalue()


def test_words_of_every_language_tabs_and_line_ends_stay() -> None:
    text = "Müller, 犬 \t and\n\u05d0 ± ·"
    assert printable(text) == text
    assert printable("a\u202eb") == "a\\u202eb"


@pytest.mark.e2e
def test_an_error_shows_the_control_characters_of_a_value(tmp_path: Path) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(f"title: {json.dumps(TITLE)}\nblocks: [{{track: {json.dumps('few' + CLEAR)}}}]\n")
    for words in (["plan", str(grid)], ["plan", "smoke", "--set", f"shots{CLEAR}=[1]"], ["plan", f"{CLEAR}.yaml"]):
        command = [sys.executable, "-m", "orchestrator", *words, "--store", str(tmp_path / "runs")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert "\x1b" not in done.stderr + done.stdout
