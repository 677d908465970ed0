"""``--cuda-graphs``: from the command to the training of a cell, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bolt.training import adaptation
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.required import cell_artifacts
from orchestrator.artifacts.spec import build, with_inputs
from orchestrator.cells.measure import measure
from orchestrator.cli import session
from orchestrator.cli.app import app
from orchestrator.cli.session import cuda_graphs_line
from orchestrator.cli.workspace import Workspace
from orchestrator.core.settings import RunSettings
from orchestrator.execution.run import RunOptions
from tests.orchestrator.conftest import World


@pytest.mark.parametrize(("option", "asked"), [(["--cuda-graphs"], True), (["--no-cuda-graphs"], False), ([], False)])
def test_the_option_is_off_by_default(
    option: list[str], asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def run_session(workspace: Workspace, options: RunOptions, console: Console) -> int:
        seen.append(workspace.settings.cuda_graphs)
        return 0

    monkeypatch.setattr(session, "run_session", run_session)
    done = CliRunner().invoke(app, ["grid", "smoke", "--limit", "1", "--store", str(tmp_path), *option])
    assert done.exit_code == 0, done.output
    assert seen == [asked]


def test_a_cell_asks_for_captured_steps_and_has_the_same_result(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = world.pick("bolt", shots=1)
    for spec in with_inputs(cell_artifacts(cell, world.catalog).specs):
        build(spec, world.settings)
    launched = measure(cell, world.loaded).result
    devices: list[str] = []

    def captured_gradient(losses: Any, trainable: Any, device: Any) -> None:
        assert trainable.capturable
        devices.append(str(device))

    monkeypatch.setattr(adaptation, "captured_gradient", captured_gradient)
    captured = measure(cell, LoadedArtifacts(replace(world.settings, cuda_graphs=True))).result
    assert devices == ["cpu"]
    assert (captured.evaluations, captured.curves) == (launched.evaluations, launched.curves)
    assert not captured.manifest.cuda_graphs  # nothing is captured on a CPU


@pytest.mark.parametrize(
    ("device", "address", "gpus", "said"),
    [
        ("cpu", None, 1, True),
        (None, None, 0, True),
        (None, None, 1, False),
        (None, "auto", 0, False),  # other machines of the cluster may have GPUs
        ("cpu", "auto", 1, True),
    ],
)
def test_a_run_without_a_gpu_says_that_nothing_is_captured(
    device: str | None, address: str | None, gpus: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "local_gpus", lambda: ["a GPU"] * gpus)
    settings = RunSettings("store", device=device, cuda_graphs=True)
    line = cuda_graphs_line(settings, RunOptions(address=address))
    assert (line is not None) == said
    assert line is None or "--cuda-graphs" in line
    assert cuda_graphs_line(replace(settings, cuda_graphs=False), RunOptions(address=address)) is None
