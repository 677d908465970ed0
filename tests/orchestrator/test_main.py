"""The entry point: what it says of a disk that the store is not on, and of names that the locale does not know."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import orchestrator.cli.app
from orchestrator.__main__ import main
from tests.conftest import GiveDatabase
from tests.helpers.photographs import write_photographs
from tests.helpers.waiting import TIMEOUT


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.ENAMETOOLONG, errno.EIO])
def test_an_error_of_a_disk_names_the_file_and_does_not_blame_the_store(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(number, "no", "/home/me/.ray\x1b[31m")

    monkeypatch.setattr(orchestrator.cli.app, "app", fail)
    monkeypatch.setattr("gc.freeze", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: /home/me/.ray\\x1b[31m cannot be used: no")
    assert "store" not in text


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: with ``BOLT_STORES``, results went into ``./runs`` without a word."""
    for name in ("BOLT_STORES", "BOLT_PYTHON", "BOLT_GEM", "BOLT_DATA"):  # the others are of scripts and other programs
        monkeypatch.setenv(name, str(tmp_path))
    said = CliRunner().invoke(orchestrator.cli.app.app, ["status", "--store", str(tmp_path)]).stderr
    assert said == "note: no command reads BOLT_STORES; did you mean BOLT_STORE?\n"


def test_every_variable_that_the_code_reads_is_known() -> None:
    folder = Path(orchestrator.__file__).parent
    read = {name for path in folder.rglob("*.py") for name in re.findall(r'"BOLT_([A-Z_]+)"', path.read_text("utf-8"))}
    assert read == set(orchestrator.cli.app.VARIABLES)


ASCII = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def run(
    place: Path, *words: str | bytes, module: str = "orchestrator", env: Mapping[str, str] = ASCII
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line, by default where the locale knows ASCII only."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=place, capture_output=True, env=env, timeout=TIMEOUT)


@pytest.mark.slow
def test_names_are_utf8_whatever_the_locale(tmp_path: Path, give_database: GiveDatabase) -> None:
    give_database(tmp_path / "störe" / "mlflow" / "mlflow.db")
    write_photographs(tmp_path / "bücher", 6)
    (tmp_path / "bücher" / "red_mug").rename(tmp_path / "bücher" / "grün")
    added = run(tmp_path, "data", "add", "bücher", "--name", "mine")
    assert "BlueBottle -> 'blue bottle', 'grün'" in added.stdout.decode(), added.stderr.decode()
    grid = run(tmp_path, "grid", "mine.yaml", "--only", "method=zero_shot", "--store", "störe", "--local")
    assert grid.returncode == 0, grid.stderr.decode()
    assert len(list((tmp_path / "störe" / "results").glob("*.json"))) == 1
    none = run(tmp_path, "predict", "größe", "bücher", module="bolt")
    assert none.returncode == 2
    assert none.stderr.decode().startswith("error: größe ")


def test_texts_are_utf8_whatever_the_encoding_of_the_streams(tmp_path: Path) -> None:
    """Regression: a traceback, after the command had done its work."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = run(tmp_path, "plan", "日本.yaml", env=env)
    assert ended.stderr.decode().startswith("error: GRID: there is no grid file 日本.yaml")


def test_names_are_utf8_in_a_locale_of_latin1(tmp_path: Path) -> None:
    """Regression: the words of the class ``grün`` were ``grã¼n``, without a word."""
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1")]
    if not shutil.which("localedef") or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("this machine cannot make a locale")
    env = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": "en_US.ISO-8859-1"}
    code = "import sys; from bolt.util.start import prepare_process; prepare_process(); print(ascii(sys.argv[1]))"
    ended = subprocess.run([sys.executable, "-c", code, "grün"], capture_output=True, env=env, timeout=TIMEOUT)
    assert ended.stdout.decode() == ascii("grün") + "\n"


@pytest.mark.slow
def test_the_installed_script_starts_in_utf8_mode_too(tmp_path: Path) -> None:
    """It called the store's name in UTF-8 not UTF-8."""
    code = "from orchestrator.__main__ import start; start()"
    command = [sys.executable, "-c", code, "status", "smoke", "--store", "störe"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, env=ASCII, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr.decode()


def test_closed_streams_end_no_command_and_give_no_file_their_numbers(tmp_path: Path) -> None:
    code = (
        "import sys; from bolt.util.start import prepare_process; prepare_process(); sys.stdout.buffer.write(b'');"
        "sys.exit(open('file', 'w').fileno() < 3)"
    )
    command = ["sh", "-c", f'exec {sys.executable} -c "{code}" <&- >&- 2>&-']
    assert subprocess.run(command, cwd=tmp_path, timeout=TIMEOUT).returncode == 0


@pytest.mark.parametrize(("module", "word"), [("orchestrator", "plan"), ("bolt", "predict")])
def test_a_working_folder_that_was_deleted_is_said(tmp_path: Path, module: str, word: str) -> None:
    """PyTorch's arithmetic library ended the process there, and named a file of its own."""
    (tmp_path / "gone").mkdir()
    command = ["sh", "-c", f"rmdir ../gone && exec {sys.executable} -m {module} {word} a b"]
    ended = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, timeout=TIMEOUT)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"error: the working folder was deleted")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("status", "smoke", "--store", b"st\xf6re"), ("adapt", b"b\xfccher")])
def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path, words: tuple[str | bytes, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert b"is not UTF-8\n  rename the file or folder\n" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("module", "words"), [("orchestrator", ("data", "list")), ("bolt", ("--help",))])
def test_a_module_of_the_users_hides_none_of_pythons(tmp_path: Path, module: str, words: tuple[str, ...]) -> None:
    """``random.py`` beside the images was imported in place of Python's module."""
    (tmp_path / "random.py").write_text("raise RuntimeError('the user')")
    ended = run(tmp_path, *words, module=module)
    assert ended.returncode == 0, ended.stderr.decode()
