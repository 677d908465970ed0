"""What a user gets wrong ends with exit code 2, a sentence, and no traceback - before any work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.__main__ import main
from tests.helpers import command


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


Typed = Callable[..., Ended]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command to its end in this process, as importing PyTorch anew takes longer than all these commands."""

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["orchestrator", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return run


WRONG = {
    "a grid that does not exist": (["grid", "dmeo"], "'demo'"),
    "a method that does not exist": (["grid", "demo", "--only", "method=blot"], "'bolt'"),
    "a dataset that does not exist": (["grid", "demo", "--set", "datasets=[glyph-digit]"], "glyph-digits"),
    "a backbone that does not exist": (["grid", "demo", "--set", "backbones=[tiny]"], "tiny-clip"),
    "a field that does not exist": (["grid", "demo", "--set", "shot=[1]"], "shots"),
    "a setting that does not exist": (["grid", "demo", "--set", "bolt.learning_rat=1"], "learning_rate"),
    "more shots than there are images": (["grid", "demo", "--set", "shots=[900]"], "smallest class"),
    "data that is not there": (["grid", "real"], "--data-root"),
    "real data in a folder that is not there": (["grid", "real", "--data-root", "/nowhere"], "/nowhere"),
    "an address nobody listens on": (["grid", "smoke", "--address", "127.0.0.1:1"], "--address"),
    "two ways to run at once": (["grid", "smoke", "--local", "--address", "auto"], "exclude"),
    "a limit nobody can keep": (["grid", "smoke", "--local", "--cell-limit", "1h"], "--cell-limit"),
    "a store of an unknown kind": (["grid", "smoke", "--store", "nosuch://x"], "nosuch"),
    "a store that cannot be written to": (
        ["grid", "smoke", "--local", "--store", "/dev/null/x"],
        "the store cannot be used",
    ),
    "a plan of a grid that does not exist": (["plan", "nothing"], "unknown grid"),
    "a report of a grid that does not exist": (["report", "nothing"], "unknown grid"),
    "a catalog file that is not there": (["plan", "demo", "--catalog", "/nowhere.yaml"], "/nowhere.yaml"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_what_would_be_right(case: str, tmp_path: Path, typed: Typed) -> None:
    words, expected = WRONG[case]
    store = [] if "--store" in words else ["--store", str(tmp_path / "runs")]
    done = typed(*words, *store)
    assert done.code == 2, done.out + done.err
    assert expected in done.err
    assert not list((tmp_path / "runs").glob("results/*")), "nothing may have run"


def test_a_mistake_is_no_traceback_of_the_program() -> None:
    done = command.orchestrator("grid", "dmeo")
    assert done.returncode == 2
    assert "'demo'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_a_usage_error(typed: Typed) -> None:
    done = typed("grid", "demo", "--plam")
    assert done.code == 2
    assert "--plan" in done.err


@pytest.mark.parametrize("grid", ["demo", "demo-full", "full", "fewshot", "ood", "tta", "smoke"])
def test_every_grid_plans_without_data(grid: str, tmp_path: Path, typed: Typed) -> None:
    done = typed("plan", grid, "--store", str(tmp_path))
    assert done.code == 0, done.err
    assert "to do" in done.out
