"""Cells and graphs on a real Ray: order, failures, dead workers, Ctrl-C, a cluster that goes away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.cell import Cell
from orchestrator.cluster import Cluster, run_graph
from orchestrator.errors import UserError
from orchestrator.events import CellEvent, Resources
from orchestrator.graph import GraphTask
from orchestrator.local import run_cells_locally
from orchestrator.settings import RunSettings
from tests.orchestrator import samples

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two CPUs, and two GPUs that are only believed in."""
    with Cluster.connect(None, cpus=2, gpus=2) as connected:
        yield connected


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(str(tmp_path))


def run(
    cells: list[Cell],
    settings: RunSettings,
    runner: str,
    *,
    resources: Callable[[Cell], Resources] = lambda cell: Resources(),
    on_event: Callable[[CellEvent], None] = lambda event: None,
    attempts: int = 2,
) -> list[CellEvent]:
    from orchestrator.fanout import run_cells

    events: list[CellEvent] = []

    def note(event: CellEvent) -> None:
        events.append(event)
        on_event(event)

    run_cells(
        cells,
        settings,
        resources=resources,
        slots=2,
        max_attempts=attempts,
        on_event=note,
        runner=f"{samples.HERE}:{runner}",
    )
    return events


def notes(cell: Cell, settings: RunSettings) -> list[list[str]]:
    """What the runner wrote down for a cell: a word, its process, the time."""
    path = Path(settings.store_url, cell.id)
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def ends(events: list[CellEvent]) -> Counter[str]:
    return Counter(event.cell.id for event in events if event.kind != "started")


def test_every_cell_runs_once_nearly_in_order_in_reused_workers(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(300)]
    events = run(cells, settings, "write_nothing")
    assert ends(events) == {cell.id: 1 for cell in cells}
    assert all(len(notes(cell, settings)) == 1 for cell in cells)
    assert len({notes(cell, settings)[0][1] for cell in cells}) <= 4
    begun = [event.cell.seed for event in events if event.kind == "started"]
    late = [seed for place, seed in enumerate(begun) if abs(place - seed) >= 10]
    assert len(late) <= 2  # the first cell of a worker that takes long to start


def test_failures_are_told_apart_and_do_not_stop_the_others(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(10)]
    told = run(cells, settings, "misbehave")
    assert ends(told) == {cell.id: 1 for cell in cells}
    events = {event.cell.seed: event for event in told if event.kind != "started"}
    assert {seed for seed, event in events.items() if event.kind == "finished"} == {0, 2, 4, 6, 8}
    method, store, worker = events[5], events[7], events[3]
    assert (method.error, method.recorded) == ("ValueError: one too many", True)
    assert Path(method.log).is_file()
    assert len(notes(cells[5], settings)) == 1  # what a method raises is not tried again
    assert (store.error, store.recorded) == ("OSError: no space left on device", False)
    assert "raise OSError" in store.traceback
    assert store.attempt == len(notes(cells[7], settings)) == 2
    assert worker.error.startswith("the worker process died")
    assert (worker.attempt, worker.recorded) == (2, False)


def test_a_killed_worker_is_replaced_and_its_place_used_again(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(40)]
    killed: list[tuple[str, float]] = []

    def kill_one(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 6 and event.attempt == 1:
            deadline = time.monotonic() + 10
            while not (written := notes(event.cell, settings)) and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(int(written[0][1]), signal.SIGKILL)
            killed.append((written[0][1], time.time()))

    events = run(cells, settings, "nap", on_event=kill_one)
    ((dead, when),) = killed
    assert ends(events) == {cell.id: 1 for cell in cells}
    assert all(event.kind != "failed" for event in events)
    written = [(cell, note) for cell in cells for note in notes(cell, settings)]
    assert Counter(cell.id for cell, note in written if note[0] == "finished") == {cell.id: 1 for cell in cells}
    after = Counter(note[1] for _, note in written if note[0] == "finished" and float(note[2]) > when)
    assert dead not in after
    assert len(after) == 2, f"only one of two places worked after a worker was killed: {after}"
    assert min(after.values()) >= 3


def test_cells_get_the_gpus_they_ask_for_and_see_no_others(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(8)]

    def share(cell: Cell) -> Resources:
        return Resources(cpus=0.5, gpus=0.5) if cell.seed < 4 else Resources(cpus=1)

    events = run(cells, settings, "look_around", resources=share)
    assert ends(events) == {cell.id: 1 for cell in cells}
    seen = [notes(cell, settings)[0][0] for cell in cells]
    assert set(seen[:4]) <= {"devices=0", "devices=1"}
    assert set(seen[4:]) == {"devices="}


def test_ctrl_c_stops_soon_and_leaves_the_cluster_usable(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(10)]

    def interrupt(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 1:
            signal.raise_signal(signal.SIGINT)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(cells, settings, "sleep_long", on_event=interrupt)
    assert time.monotonic() - begun < 60
    assert ends(run(cells[:4], settings, "write_nothing")) == {cell.id: 1 for cell in cells[:4]}


def test_what_a_listener_raises_ends_the_run(cluster: Cluster, settings: RunSettings) -> None:
    def full(event: CellEvent) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run([samples.cell(number) for number in range(4)], settings, "write_nothing", on_event=full)


def test_no_cells_are_no_work(cluster: Cluster, settings: RunSettings) -> None:
    assert run([], settings, "write_nothing") == []


@pytest.mark.parametrize("wrong", [{"cpus": -1.0}, {"cpus": 0.0}, {"gpus": 1.5}])
def test_impossible_requests_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Resources(**wrong)  # type: ignore[arg-type]


# -- without Ray ---------------------------------------------------------------------------------------------------


def test_local_cells_tell_the_same_story(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in (0, 1, 2, 7, 8)]
    events: list[CellEvent] = []
    run_cells_locally(cells, settings, on_event=events.append, runner=f"{samples.HERE}:misbehave")
    assert [event.cell.seed for event in events if event.kind == "started"] == [0, 1, 2, 7, 8]
    last = {event.cell.seed: event for event in events}
    assert (last[1].error, last[1].recorded) == ("ValueError: one too many", True)
    assert (last[7].error, last[7].recorded) == ("OSError: no space left on device", False)
    assert last[8].kind == "finished"


# -- graphs --------------------------------------------------------------------------------------------------------


def append(path: str, word: str) -> str:
    with open(path, "a") as stream:
        stream.write(f"{word}\n")
    return word


def refuse() -> None:
    raise UserError("no", hint="never")


def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return os.getpid()


def test_a_graph_on_ray_keeps_needs_fails_and_skips(cluster: Cluster, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    tasks = {
        "images": GraphTask(append, (log, "images"), cpus=0.5),
        "features": GraphTask(append, (log, "features"), frozenset({"images"}), cpus=0.5),
        "broken": GraphTask(refuse, cpus=0.5),
        "doomed": GraphTask(append, (log, "doomed"), frozenset({"broken", "images"}), cpus=0.5),
        "dying": GraphTask(die_once, (str(tmp_path / "died"),), cpus=0.5),
    }
    events = list(run_graph(tasks, in_flight=2))
    last = {event.key: event for event in events if event.kind != "started"}
    assert {key: event.kind for key, event in last.items()} == {
        "images": "finished",
        "features": "finished",
        "broken": "failed",
        "doomed": "skipped",
        "dying": "finished",
    }
    assert last["features"].value == "features"
    assert "UserError: no" in last["broken"].error
    assert Path(log).read_text().split() == ["images", "features"]


# -- the cluster ---------------------------------------------------------------------------------------------------


def test_a_local_instance_says_what_it_has_and_listens_on_loopback_only(cluster: Cluster) -> None:
    import ray

    info = cluster.describe()
    assert (info.address, info.nodes, info.cpus, info.gpus, info.largest) == ("local", 1, 2, 2, (2, 2))
    assert info.memory > 0
    assert Path(info.logs).is_dir()
    (node,) = ray.nodes()
    port = node["NodeManagerPort"]
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(OSError):  # one that listens everywhere answers here, too
        socket.create_connection(("127.0.0.2", port), timeout=5).close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_joining_what_is_not_there_is_said_within_seconds(address: str) -> None:
    with pytest.raises(UserError, match="--address"):
        Cluster.connect(address)


def test_workers_get_the_environment_and_not_this_process() -> None:
    script = (
        "import os\n"
        "from orchestrator.cluster import Cluster, run_graph\n"
        "from orchestrator.graph import GraphTask\n"
        "with Cluster.connect(None, cpus=1, worker_env={'OMP_NUM_THREADS': '3'}):\n"
        "    events = list(run_graph({'ask': GraphTask(os.getenv, ('OMP_NUM_THREADS',))}))\n"
        "print(events[-1].value, os.getenv('OMP_NUM_THREADS'), os.getenv('PYTHONPATH'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["3", "None", "None"], done.stderr


LOSING = """
import contextlib, os, sys, tempfile
from pathlib import Path
from orchestrator.cluster import Cluster, ClusterLost
from orchestrator.events import Resources
from orchestrator.settings import RunSettings
from tests.orchestrator import samples

def kill(event):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            program = (stat.parent / "cmdline").read_bytes().split(b"\\0")[0]
            if parent == os.getpid() and program.endswith(b"/raylet"):
                os.kill(int(stat.parent.name), 9)

with Cluster.connect(None, cpus=1), tempfile.TemporaryDirectory() as folder:
    from orchestrator.fanout import run_cells
    try:
        run_cells([samples.cell()], RunSettings(folder), resources=lambda cell: Resources(), slots=1, max_attempts=1,
                  on_event=kill, runner="tests.orchestrator.samples:sleep_long")
    except ClusterLost as error:
        print("lost:", error)
sys.stdout.flush()
os._exit(0)  # as the command line leaves a lost cluster
"""


def test_a_cluster_that_dies_does_not_leave_the_driver_waiting() -> None:
    done = subprocess.run([sys.executable, "-c", LOSING], capture_output=True, text=True, timeout=120)
    assert "lost: the Ray cluster was lost: its raylet has ended" in done.stdout, done.stderr
    assert "run the same command again" in done.stdout
