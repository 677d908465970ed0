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
def test_cells_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.execution.tune.callback import TuneCallback
    from orchestrator.execution.tune.driver import run_cells
    from orchestrator.execution.tune.scheduler import NewestFirstScheduler

    hidden: set[tuple[str, ...]] = set()

    def hide(owner: type, method: str, names: tuple[str, ...]) -> None:
        original = getattr(owner, method)

        def hiding(self: object, *arguments: Any, **named: Any) -> Any:
            def without(each: Any) -> Any:
                if not any(hasattr(each, name) for name in names):
                    return each
                hidden.add(names)
                return Without(each, names)

            return original(self, *map(without, arguments), **{key: without(value) for key, value in named.items()})

        monkeypatch.setattr(owner, method, hiding)

    lists = ("_live_trials", "_stopped_trials", "_trials_to_cache")
    hide(NewestFirstScheduler, "on_trial_complete", ("_actor_cache",))
    hide(NewestFirstScheduler, "on_trial_add", lists)
    hide(TuneCallback, "on_trial_start", ("temporary_state",))
    cells, ended = [samples.cell(number) for number in range(6)], []
    run_cells(
        cells, RunSettings(str(tmp_path)), request=lambda cell: Resources(cpus=2), max_attempts=2,
        on_event=lambda event: ended.append(event.cell.id) if event.kind != "started" else None,
        runner=f"{samples.HERE}:write_nothing",
    )  # fmt: skip
    assert sorted(ended) == sorted(cell.id for cell in cells)
    assert hidden == {("_actor_cache",), lists, ("temporary_state",)}


@pytest.mark.ray
def test_an_instance_starts_on_loopback_and_ends_without_the_private_modules() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_PRIVATE_MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ended"]), done.stderr[-2000:]
