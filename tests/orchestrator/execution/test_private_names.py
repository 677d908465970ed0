"""The names of Ray that are not public: without any of them a run is less comfortable, and ends with the same cells."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

WITHOUT_PRIVATE_MODULES = """
import builtins
found = builtins.__import__

def without(name, globals=None, locals=None, fromlist=(), level=0):
    if name.startswith("ray._private") and (globals or {}).get("__name__", "").startswith("orchestrator"):
        raise ImportError(name)
    return found(name, globals, locals, fromlist, level)

builtins.__import__ = without
from orchestrator.execution.cluster import connect
from orchestrator.execution.health import check_alive
with connect(None, cpus=1):
    import ray
    check_alive()
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    assert ray.get(ray.remote(lambda: 3).remote()) == 3
print("ended")
"""


class Without:
    """An object of Ray that lacks some attributes."""

    def __init__(self, of: object, names: tuple[str, ...]) -> None:
        self._of, self._names = of, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._of, name)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("where", "method", "names"),
    [
        ("scheduler.NewestFirstScheduler", "on_trial_complete", ("_actor_cache",)),
        ("scheduler.NewestFirstScheduler", "on_trial_add", ("_live_trials", "_stopped_trials", "_trials_to_cache")),
        ("callback.TuneCallback", "on_trial_start", ("temporary_state",)),
    ],
)
def test_cells_run_once(
    where: str, method: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    from orchestrator.execution.tune.driver import run_cells

    module, name = where.split(".")
    owner = getattr(importlib.import_module(f"orchestrator.execution.tune.{module}"), name)
    original = getattr(owner, method)

    def hiding(self: object, *arguments: Any, **named: Any) -> Any:
        def hide(each: Any) -> Any:
            return Without(each, names) if any(hasattr(each, name) for name in names) else each

        return original(self, *map(hide, arguments), **{key: hide(value) for key, value in named.items()})

    monkeypatch.setattr(owner, method, hiding)
    cells, ended = [samples.cell(number) for number in range(6)], []
    run_cells(
        cells, RunSettings(str(tmp_path)), request=lambda cell: Resources(cpus=1), max_attempts=2,
        on_event=lambda event: ended.append(event.cell.id) if event.kind != "started" else None,
        runner=f"{samples.HERE}:write_nothing",
    )  # fmt: skip
    assert sorted(ended) == sorted(cell.id for cell in cells)


@pytest.mark.ray
def test_an_instance_starts_on_loopback_and_ends_without_the_private_modules() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_PRIVATE_MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ended"]), done.stderr[-2000:]
