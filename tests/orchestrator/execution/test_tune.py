"""Cells and graphs on a real Ray: order, failures, dead workers, Ctrl-C, a cluster that goes away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.cluster import Cluster, run_graph
from orchestrator.execution.local import run_cells_locally
from orchestrator.execution.task_graph import GraphTask
from orchestrator.planning.packing import Packing
from orchestrator.store.failure_kind import Unwritable
from orchestrator.util.errors import UserError
from tests.faults import nodes
from tests.helpers import cells as samples
from tests.helpers.waiting import PATIENCE, until, wait_for

LIMIT_SECONDS = 20.0
"""Longer than a worker takes to load what it needs for its first cell, on a machine that is busy."""

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
    **more: Any,
) -> list[CellEvent]:
    from orchestrator.execution.tune import run_cells

    events: list[CellEvent] = []

    def note(event: CellEvent) -> None:
        events.append(event)
        on_event(event)

    run_cells(
        cells,
        settings,
        resources=resources,
        max_attempts=attempts,
        on_event=note,
        runner=f"{samples.HERE}:{runner}",
        **more,
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
    assert [event.again for event in (method, store, worker)] == [False, False, True]


def test_a_killed_worker_is_replaced_and_its_place_used_again(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(400)]
    killed: list[str] = []
    after: Counter[str] = Counter()

    def kill_one(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 6 and event.attempt == 1:
            wait_for(lambda: bool(notes(event.cell, settings)))
            killed.append(notes(event.cell, settings)[0][1])
            os.kill(int(killed[0]), signal.SIGKILL)
        if event.kind == "finished" and killed:
            after[notes(event.cell, settings)[-1][1]] += 1
            if len([process for process, count in after.items() if count >= 3 and process not in killed]) == 2:
                Path(settings.store_url, "enough").touch()

    events = run(cells, settings, "nap_or_hang_once", on_event=kill_one)
    assert ends(events) == {cell.id: 1 for cell in cells}
    assert all(event.kind != "failed" for event in events)
    written = Counter(cell.id for cell in cells for note in notes(cell, settings) if note[0] == "finished")
    assert written == {cell.id: 1 for cell in cells}
    assert len(killed) == 1
    assert Path(settings.store_url, "enough").exists(), f"one of two places worked after a worker was killed: {after}"


def test_cells_get_the_gpus_they_ask_for_and_see_no_others(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(8)]

    def share(cell: Cell) -> Resources:
        return Resources(cpus=0.5, gpus=0.5) if cell.seed < 4 else Resources(cpus=1)

    events = run(cells, settings, "look_around", resources=share)
    assert ends(events) == {cell.id: 1 for cell in cells}
    seen = [notes(cell, settings)[0][0] for cell in cells]
    assert set(seen[:4]) <= {"devices=0", "devices=1"}
    assert set(seen[4:]) == {"devices="}


def test_too_little_memory_is_tried_once_more_with_all_there_is(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(5)]
    outgrown: list[tuple[int, float]] = []
    events = run(
        cells,
        settings,
        "need_memory",
        resources=lambda cell: Resources(cpus=0.5, gpus=0.25),
        outgrew=lambda cell, share: outgrown.append((cell.seed, share)),
    )
    assert ends(events) == {cell.id: 1 for cell in cells}
    last = {event.cell.seed: event for event in events if event.kind != "started"}
    assert {seed for seed, event in last.items() if event.kind == "finished"} == {0, 2, 4}
    assert [last[seed].attempt for seed in range(5)] == [2, 2, 2, 2, 1]
    shares = [[note[0] for note in notes(cell, settings)] for cell in cells]
    assert shares[:2] == [["share=0.25", "share=1"]] * 2
    assert shares[4] == ["share=0.25"]
    assert (last[1].recorded, last[3].recorded) == (False, False)
    assert "with 0.25 of a GPU, and again with a whole one" in last[1].error
    assert "beside others, and again alone on a node" in last[3].error
    assert sorted(outgrown) == [(0, 0.25), (1, 0.25), (1, 1.0)]
    assert last[4].gpu_mib == 100.0


def test_a_cell_that_does_not_end_is_ended_and_its_place_used_again(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(4)]
    events = run(
        cells, settings, "hang_once_in_a_while", resources=lambda cell: Resources(cpus=2), cell_limit=LIMIT_SECONDS
    )
    assert ends(events) == {cell.id: 1 for cell in cells}
    last = {event.cell.seed: event for event in events if event.kind != "started"}
    assert {seed for seed, event in last.items() if event.kind == "finished"} == {0, 2, 3}
    assert (last[1].attempt, last[1].recorded) == (1, False)
    assert f"limit of {LIMIT_SECONDS:.0f} s" in last[1].error
    assert "--cell-limit" in last[1].error


def test_nobody_talks_to_ray_for_a_room_that_was_left(cluster: Cluster) -> None:
    """A node's GPUs are asked about in a thread, which would end the process where it met the end of Ray."""
    from orchestrator.execution.tune.capacity import Room

    before = replace(cluster.describe(), gpus=0.0, may_become=(2.0, 0.0))
    with Room(before, Packing(load_catalog()), RunSettings("unused")) as room:
        assert room.capacity() == (2.0, 2.0)  # two GPUs have come
    assert "gpu-memory" not in {thread.name for thread in threading.enumerate()}


def test_a_store_that_takes_nothing_ends_the_run_and_fails_no_cell(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(50)]
    seen: list[CellEvent] = []
    with pytest.raises(Unwritable, match="the disk is full") as caught:
        run(cells, settings, "find_the_disk_full", on_event=seen.append)
    assert ends(seen) == {cell.id: 1 for cell in cells[:2]}
    assert all(event.kind != "failed" for event in seen)
    assert len([event for event in seen if event.kind == "started"]) < 10
    assert "run the same command" in str(caught.value)


def test_workers_are_kept_among_kinds_of_request_that_alternate(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(40)]
    events = run(
        cells,
        settings,
        "write_nothing",
        resources=lambda cell: Resources(cpus=0.25, gpus=1.0 if cell.seed % 4 else 0.5),
    )
    assert ends(events) == {cell.id: 1 for cell in cells}
    assert len({notes(cell, settings)[0][1] for cell in cells}) <= 8  # two whole GPUs, four halves, and change


def test_ctrl_c_stops_soon_and_leaves_the_cluster_usable(cluster: Cluster, settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(10)]

    def interrupt(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(cells, settings, "sleep_long", on_event=interrupt)
    assert ends(run(cells[:4], settings, "write_nothing")) == {cell.id: 1 for cell in cells[:4]}
    ended = [cell.seed for cell in cells for note in notes(cell, settings) if note[0] == "finished"]
    assert ended == [0, 1, 2, 3]  # once each: nothing waited for one that sleeps


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
        "dead": GraphTask(os._exit, (1,), cpus=0.5),
    }
    events = list(run_graph(tasks, in_flight=2))
    last = {event.key: event for event in events if event.kind != "started"}
    assert {key: event.kind for key, event in last.items()} == {
        "images": "finished",
        "features": "finished",
        "broken": "failed",
        "doomed": "skipped",
        "dying": "finished",
        "dead": "failed",
    }
    assert last["features"].value == "features"
    assert "UserError: no" in last["broken"].error
    assert [last[name].again for name in ("broken", "doomed", "dead")] == [False, False, True]
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


def test_workers_get_the_environment_and_this_process_keeps_its_own_and_its_signals() -> None:
    script = (
        "import os, signal\n"
        "from orchestrator.execution.cluster import Cluster, run_graph\n"
        "from orchestrator.execution.task_graph import GraphTask\n"
        "with Cluster.connect(None, cpus=1, worker_env={'OMP_NUM_THREADS': '3'}):\n"
        "    events = list(run_graph({'ask': GraphTask(os.getenv, ('OMP_NUM_THREADS',))}))\n"
        "    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
        "print(events[-1].value, os.getenv('OMP_NUM_THREADS'), os.getenv('PYTHONPATH'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert done.stdout.split() == ["True", "3", "None", "None"], done.stderr


JOINED = """
import sys
from collections import Counter
from pathlib import Path
from orchestrator.catalog import load_catalog
from orchestrator.execution.cluster import Cluster
from orchestrator.core.events import Resources
from orchestrator.execution.tune import run_cells
from orchestrator.execution.tune.capacity import Room
from orchestrator.planning.packing import Packing
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

address, folder = sys.argv[1:]
done = Counter()

def enough(event):
    if event.kind == "started":
        Path(folder, "begun").touch()
    if event.kind == "finished":
        done[Path(folder, event.cell.id).read_text().split()[1]] += 1
    if len([process for process, cells in done.items() if cells >= 3]) == 2:
        raise KeyboardInterrupt

with Cluster.connect(address) as cluster:
    with Room(cluster.describe(), Packing(load_catalog()), RunSettings(folder)) as room:
        places = room.places([samples.cell()])
        try:
            run_cells([samples.cell(number) for number in range(400)], RunSettings(folder), resources=room.request,
                      capacity=room.capacity, max_attempts=2, on_event=enough, runner="tests.helpers.cells:nap")
        except KeyboardInterrupt:
            pass
print(places, len(done))
"""


def test_a_node_that_joins_a_running_cluster_gets_cells(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="j", dir="/tmp") as short, nodes.Cluster(Path(short), workers=1) as real:
        driver = subprocess.Popen(
            [sys.executable, "-c", JOINED, real.address, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=real.driver_environment,
        )
        try:
            assert until((tmp_path / "begun").exists)
            real.join()
            said, _ = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
            driver.wait()
    assert said.split() == ["1", "2"]


TAKING_MACHINES_DOWN = """
import sys
from orchestrator.execution.cluster import Cluster
from orchestrator.core.events import Resources
from orchestrator.execution.tune import run_cells
from orchestrator.execution.tune import callback as relay
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

def say(event):
    print(event.kind, event.attempt, event.again, event.recorded)

address, folder, losses = sys.argv[1:]
relay.NODE_LOSSES = int(losses)
with Cluster.connect(address):
    run_cells([samples.cell()], RunSettings(folder), resources=lambda cell: Resources(), max_attempts=1, on_event=say,
              runner="tests.helpers.cells:sleep_long")
"""


def test_a_cell_that_loses_machine_after_machine_is_given_up_at_last(tmp_path: Path) -> None:
    """The loss of a machine is none of a cell's attempts: one that takes its machine down would go on for ever."""
    settings, cell, losses = RunSettings(str(tmp_path)), samples.cell(), 2
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as short, nodes.Cluster(Path(short), workers=1) as real:
        driver = subprocess.Popen(
            [sys.executable, "-c", TAKING_MACHINES_DOWN, real.address, str(tmp_path), str(losses)],
            stdout=subprocess.PIPE,
            text=True,
            env=real.driver_environment,
        )
        try:
            for begun in range(1, losses + 1):
                assert until(lambda count=begun: len(notes(cell, settings)) == count)
                real.nodes[0].kill()
                if begun < losses:
                    real.mend()
            said, _ = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
            driver.wait()
    assert said.splitlines() == ["started 1 False True", "started 2 False True", "failed 2 True False"]


LOSING = """
import contextlib, os, sys, tempfile
from pathlib import Path
from orchestrator.execution.cluster import Cluster, ClusterLost
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

def kill(event):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            program = (stat.parent / "cmdline").read_bytes().split(b"\\0")[0]
            if parent == os.getpid() and program.endswith(b"/raylet"):
                os.kill(int(stat.parent.name), 9)

with Cluster.connect(None, cpus=1), tempfile.TemporaryDirectory() as folder:
    from orchestrator.execution.tune import run_cells
    try:
        run_cells([samples.cell()], RunSettings(folder), resources=lambda cell: Resources(), slots=1, max_attempts=1,
                  on_event=kill, runner="tests.helpers.cells:sleep_long")
    except ClusterLost as error:
        print("lost:", error)
sys.stdout.flush()
os._exit(0)  # as the command line leaves a lost cluster
"""


def test_a_cluster_that_dies_does_not_leave_the_driver_waiting() -> None:
    done = subprocess.run([sys.executable, "-c", LOSING], capture_output=True, text=True, timeout=PATIENCE)
    assert "lost: the Ray cluster was lost: its raylet has ended" in done.stdout, done.stderr
    assert "run the same command again" in done.stdout


COLLECTING = """
import threading
from orchestrator.execution.cluster import Cluster
import ray

class Loop:
    \"\"\"Garbage that only the collector finds, with a reference of Ray's in it, as Tune leaves it.\"\"\"

    def __init__(self, held):
        self.held, self.me = held, self

cluster = Cluster.connect(None, cpus=1)
one = ray.put(1)
loops = [Loop(ray.ObjectRef(one.binary())) for _ in range(100_000)]
over = threading.Event()

def work():
    while not over.is_set():
        loops.pop()
        [[] for _ in range(1000)]  # enough for the collector to run

thread = threading.Thread(target=work)
thread.start()
cluster.close()
over.set()
thread.join()
print("closed")
"""


def test_a_reference_that_is_collected_while_ray_ends_once_ended_the_driver() -> None:
    """A run of the suite met it once: another thread's work set the collector off at that very moment."""
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
