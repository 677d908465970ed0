"""Files that are whole or absent, folders that end with their process, sizes and durations in words."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from orchestrator.util.atomic_files import replacing
from orchestrator.util.console import Console, plain_table, print_line, printable
from orchestrator.util.errors import UserError
from orchestrator.util.scratch import ScratchFolder
from orchestrator.util.units import human_duration, parse_bytes
from tests.helpers import command


def test_a_file_is_replaced_at_the_end_of_the_block_and_a_link_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "new" / "file.txt", tmp_path / "link.txt"
    path.parent.mkdir()
    with replacing(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    link.symlink_to(path)
    with replacing(link) as temporary:
        temporary.write_text("two")
    assert path.read_text() == "two"
    assert link.is_symlink()
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def write_half(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="file"):  # a folder that is a file
        write_half(path / "below.txt")


HOLD = """
import sys, time
from pathlib import Path
from orchestrator.util.scratch import ScratchFolder
scratch = ScratchFolder("test", Path(sys.argv[1]))
(scratch.path / "file").write_text("left")
print(scratch.path, flush=True)
time.sleep(600)
"""


def holder(base: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(base)], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    living, kept = holder(tmp_path)
    killed, left = holder(tmp_path)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        with ScratchFolder("test", tmp_path) as own:
            assert own.stat().st_mode & 0o777 == 0o700
            (own / "file").write_text("x")
            assert not left.exists()
            assert (kept / "file").is_file()
        with ScratchFolder("other", tmp_path):
            assert kept.is_dir()
        assert list(tmp_path.iterdir()) == [kept]
    finally:
        for process in (living, killed):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("text", "count"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 * 2**39), ("500m", 500 * 10**6), ("7", 7), ("8KiB", 8192), ("3b", 3)],
)
def test_sizes_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text, "--disk-budget") == count


@pytest.mark.parametrize("text", ["", "many", "-3GB", "0", "3XB", "GB", "1e9", "3 GB GB", "x" * 4000])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a size") as refused:
        parse_bytes(text, "--disk-budget")
    assert len(str(refused.value)) < 500, "the beginning of what is long"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (3570.0, "1 h 00 min"), (11100.0, "3 h 05 min"),
        (187200.0, "2 d 4 h"), (1.7e6, "19 d"), (1.7e9, "54 years"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert human_duration(seconds) == words


CLEAR, TITLE = "\x1b[2J", "\x1b]0;mine\x07"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_are_shown_whatever_prints_them_and_own_colours_stay(is_terminal: bool) -> None:
    screen = io.StringIO()
    colours = "standard" if is_terminal else None
    console = Console(file=screen, force_terminal=is_terminal, width=200, color_system=colours)
    table = plain_table("name")
    table.add_row(f"row {CLEAR}")
    table.add_row(Text(f"text {CLEAR}", style="red"))
    print_line(f"line {CLEAR}{TITLE}\x9b2J", console, "red")
    console.print(table)
    shown = screen.getvalue()
    assert not any(sign in shown for sign in (CLEAR, TITLE, "\x9b", "\x07"))
    assert all(f"{kind} \\x1" in shown for kind in ("line", "row", "text"))
    assert ("\x1b[31mline" in shown) == is_terminal


def test_brackets_in_a_status_line_are_no_markup() -> None:
    """``adapt -o 'mug[/a]'`` was a traceback after all its work, when it showed that it writes the model."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    with console.status("a[b] m[/x]") as status:
        console.print("a line above shows the text at once")
        status.update("c[d] n[/y]")
    assert all(text in screen.getvalue() for text in ("a[b] m[/x]", "c[d] n[/y]"))


def test_words_of_every_language_tabs_and_line_ends_stay() -> None:
    text = "Müller, 犬 \t and\n\u05d0 ± ·"
    assert printable(text) == text
    assert printable("a\u202eb") == "a\\u202eb"


@pytest.mark.e2e
def test_an_error_shows_the_control_characters_of_a_value(tmp_path: Path) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(f"title: {json.dumps(TITLE)}\nblocks: [{{track: {json.dumps('few' + CLEAR)}}}]\n")
    for words in (["plan", str(grid)], ["plan", "smoke", "--set", f"shots{CLEAR}=[1]"], ["plan", f"{CLEAR}.yaml"]):
        done = command.orchestrator(*words, "--store", str(tmp_path / "runs"))
        assert done.returncode == 2
        assert "\x1b" not in done.stderr + done.stdout
