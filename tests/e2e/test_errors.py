"""Mistakes of users end with exit code 2 and a message before any work, without a traceback."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.__main__ import main
from tests.helpers import command


class Outcome(NamedTuple):
    code: object
    out: str
    err: str


RunCommand = Callable[..., Outcome]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """A function that runs a command in this process. Importing PyTorch takes longer than all these commands."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["orchestrator", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


WRONG = {
    "a grid that does not exist": (["grid", "dmeo"], "'demo'"),
    "a method that does not exist": (["grid", "demo", "--only", "method=blot"], "'bolt'"),
    "a field that does not exist": (["grid", "demo", "--set", "shot=[1]"], "shots"),
    "more shots than there are images": (["grid", "demo", "--set", "shots=[900]"], "smallest class"),
    "an option that does not exist": (["grid", "demo", "--plam"], "--plan"),
    "a list without brackets": (["plan", "smoke", "--set", "shots=4,8"], "--set shots=[4,8]"),
    "two values of one field": (["plan", "smoke", "--set", "shots=4", "--set", "shots=8"], "--set shots=[A,B]"),
    "a GPU that this machine lacks": (["grid", "smoke", "--local", "--device", "cuda:99"], "no GPU for cuda:99"),
    "a GPU that Ray does not number": (["grid", "smoke", "--device", "cuda:1"], "CUDA_VISIBLE_DEVICES"),
    "missing data": (["grid", "real"], "--data-root"),
    "a missing data root": (["grid", "real", "--data-root", "/nowhere"], "/nowhere"),
    "an empty data root": (["grid", "smoke", "--data-root", ""], "the data root is empty"),
    "an address without a server": (["grid", "smoke", "--address", "127.0.0.1:1"], "--address"),
    "two exclusive options": (["grid", "smoke", "--local", "--address", "auto"], "exclude"),
    "a plan beyond its budget": (["grid", "smoke", "--local", "--disk-budget", "10kB"], "--disk-budget"),
    "a limit that --local cannot keep": (["grid", "smoke", "--local", "--cell-limit", "1h"], "--cell-limit"),
    "a GPU's memory without a plan": (["grid", "smoke", "--gpu-memory", "40GiB"], "--plan"),
    "a packing in JSON": (["plan", "smoke", "--gpu-memory", "40GiB", "--json"], "how GPUs are packed"),
    "a status that is watched in JSON": (["status", "smoke", "--watch", "--json"], "exclude"),
    "values for the status of a store": (["status", "--set", "shots=[1]"], "--set"),
    "one metric beside all": (["results", "smoke", "--metrics", "--metric", "accuracy"], "--metrics"),
    "values for published numbers": (["report", "--published", "--set", "shots=[1]"], "--set"),
    "a store of an unknown kind": (["grid", "smoke", "--store", "nosuch://x"], "nosuch"),
    "a store that is a file": (["grid", "smoke", "--local", "--store", "/dev/null/x"], "the store cannot be used"),
    "a plan of a grid that does not exist": (["plan", "nothing"], "unknown grid"),
    "a setting of a method as an option of adapt": (["adapt", "x", "--learning-rate", "1"], "lora(learning_rate="),
    "a missing catalog file": (["plan", "demo", "--catalog", "/nowhere.yaml"], "/nowhere.yaml"),
}


@pytest.mark.parametrize("built", [False, True])
def test_weights_that_cannot_be_fetched_are_named(
    built: bool, tmp_path: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another machine has built all artifacts: such cells once began without the weights."""
    if built:
        monkeypatch.setattr("orchestrator.store.Store.is_intact", lambda store, *artifact: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    done = run_command("grid", "smoke", "--local", "--set", "backbones=[vit-b-32]", "--store", str(tmp_path / "runs"))
    assert done.code == 2, done.out + done.err
    assert "the weights openai of backbone vit-b-32 cannot be fetched" in done.err
    assert not list((tmp_path / "runs").rglob("failures/*"))


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_a_remedy(case: str, tmp_path: Path, run_command: RunCommand) -> None:
    words, expected = WRONG[case]
    store = [] if "--store" in words else ["--store", str(tmp_path / "runs")]
    done = run_command(*words, *store)
    assert done.code == 2, done.out + done.err
    assert expected in done.err
    assert not [*(tmp_path / "runs").glob("results/*"), *(tmp_path / "runs").glob("images")], "nothing may have run"


def test_a_mistake_is_no_traceback_of_the_program() -> None:
    done = command.run([sys.executable, "-m", "orchestrator", "grid", "dmeo"])
    assert done.returncode == 2
    assert "'demo'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_largest_grid_plans_without_data(tmp_path: Path, run_command: RunCommand) -> None:
    done = run_command("plan", "full", "--store", str(tmp_path))
    assert done.code == 0, done.err
    assert "to do" in done.out
