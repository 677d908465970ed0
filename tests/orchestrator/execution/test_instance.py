"""One Ray instance, and what runs on it: cells and graphs of tasks, with failures, dead workers, limits and Ctrl-C.

All of it is one file, so that one process of the suite starts the instance.
"""

import os
import signal
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.catalog import load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.cluster import connect
from orchestrator.execution.task_graph import GraphTask, run_graph_on_ray
from orchestrator.planning.packing import Packing
from orchestrator.store.errors import RunStopped
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.helpers.listening import LOOPBACK, listening
from tests.helpers.waiting import wait_for

ONE_WORKER = Resources(cpus=2)
"""What a cell requests where one worker shows it all: a worker takes seconds to start."""
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Resources]:
    """An instance with two CPUs and two GPUs. The GPUs are only declared: nothing computes on them."""
    with connect(None, cpus=2, gpus=2) as connected:
        yield connected


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(str(tmp_path))


def run(
    cells: list[Cell],
    settings: RunSettings,
    runner: str,
    *,
    request: Callable[[Cell], Resources] = lambda cell: Resources(),
    on_event: Callable[[CellEvent], None] = lambda event: None,
    attempts: int = 2,
    **more: Any,
) -> list[CellEvent]:
    """Run cells with a runner of ``tests/helpers/cells.py``; returns the events."""
    from orchestrator.execution.tune.driver import run_cells

    events: list[CellEvent] = []

    def collect(event: CellEvent) -> None:
        events.append(event)
        on_event(event)

    runner = f"{samples.HERE}:{runner}"
    run_cells(cells, settings, request=request, max_attempts=attempts, on_event=collect, runner=runner, **more)
    return events


def ends_of(events: list[CellEvent], cells: list[Cell]) -> dict[int, CellEvent]:
    """Return the last event of each seed, after checking that each cell has ended once."""
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    return {event.cell.seed: event for event in events if event.kind != "started"}


def finished(ends: dict[int, CellEvent]) -> set[int]:
    return {seed for seed, event in ends.items() if event.kind == "finished"}


def notes(cell: Cell, settings: RunSettings) -> list[list[str]]:
    """What the runner has noted for a cell: lines of a word, its process id, and the time."""
    path = Path(settings.store_url, cell.id)
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def count_ends(events: list[CellEvent]) -> Counter[str]:
    return Counter(event.cell.id for event in events if event.kind != "started")


def test_a_local_instance_reports_its_resources_and_is_closed_to_others(cluster: Resources) -> None:
    import ray

    words = [word for child in psutil.Process().children(recursive=True) for word in child.cmdline()]  # the first test
    idle = [word for word in words if word == "ray::IDLE" or word.endswith("default_worker.py")]
    assert not idle, "Ray once started a worker for each CPU, and cells did not use it"
    resources = ray.cluster_resources()
    assert (resources["CPU"], resources["GPU"], cluster) == (2, 2, Resources(0, 0))
    found = [listening(child) for child in psutil.Process().children()]
    assert {"gcs_server", "raylet"} <= set().union(*found)
    assert set().union(*(hosts for one in found for hosts in one.values())) <= LOOPBACK, found
    ray.get(ray.remote(lambda: None).remote())  # every worker that starts opens Ray's own folder to all users
    name = ray.get_runtime_context().get_session_name()
    (session,) = Path(tempfile.gettempdir()).glob(f"bolt-ray-*/*/{name}")
    assert stat.S_IMODE(session.parents[1].stat().st_mode) == 0o700, "others could read what workers log"


def test_a_cluster_without_room_is_told(cluster: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that joined a busy cluster, or one without CPUs, once waited without a word."""
    from orchestrator.execution.tune import capacity

    monkeypatch.setattr(capacity, "WAIT_SECONDS", 0.1)
    told: list[str] = []
    with capacity.told_of_wait(Resources(3, 0.5), told.append):
        wait_for(lambda: bool(told))
    assert (
        "no node has had 3 CPUs (--threads) and 0.5 of a GPU free for a cell; the cluster has 2 CPUs and 2 GPUs"
        in told[0]
    )


def test_every_cell_runs_once_nearly_in_order_in_reused_workers(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(300)]
    events = run(cells, settings, "write_nothing")
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    assert all(len(notes(cell, settings)) == 1 for cell in cells)
    assert len({notes(cell, settings)[0][1] for cell in cells}) <= 4
    begun = [event.cell.seed for event in events if event.kind == "started"]
    late = [seed for place, seed in enumerate(begun) if abs(place - seed) >= 10]
    assert len(late) <= 2  # the first cell of a worker that starts slowly


def test_later_cells_follow_in_the_same_worker_and_only_those_that_are_asked_for(settings: RunSettings) -> None:
    from orchestrator.execution.tune.driver import run_cells

    first, later = samples.cell(0), [samples.cell(number) for number in range(1, 5)]
    asked = {first: [later[2]], later[2]: [later[0], later[1]]}
    finished: list[Cell] = []

    def on_event(event: CellEvent) -> list[Cell]:
        finished.extend([event.cell] if event.kind == "finished" else [])
        return asked.get(event.cell, []) if event.kind == "finished" else []

    run_cells(
        [first], settings, on_event, later=later, request=lambda cell: ONE_WORKER, max_attempts=1,
        runner=f"{samples.HERE}:write_nothing",
    )  # fmt: skip
    assert finished == [first, later[2], later[0], later[1]]
    assert len({notes(cell, settings)[0][1] for cell in finished}) == 1


def test_each_kind_of_failure_is_reported_and_does_not_stop_the_others(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(10)]
    reported = run(cells, settings, "misbehave", request=lambda cell: ONE_WORKER)
    events = ends_of(reported, cells)
    assert finished(events) == {0, 2, 4, 6, 8}
    method, store, worker = events[5], events[7], events[3]
    assert (method.error, method.recorded) == ("ValueError: one too many", True)
    assert Path(method.log).is_file()
    assert len(notes(cells[5], settings)) == 1  # a method that raises is not run again
    assert (store.error, store.recorded) == ("OSError: no space left on device", False)
    assert "raise OSError" in store.traceback
    assert store.attempt == len(notes(cells[7], settings)) == 2
    assert worker.error.startswith("the worker process died")
    assert (worker.attempt, worker.recorded) == (2, False)
    assert [event.retryable for event in (method, store, worker)] == [False, False, True]


def test_a_killed_worker_is_replaced_and_both_slots_are_used_again(settings: RunSettings) -> None:
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
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    assert all(event.kind != "failed" for event in events)
    written = Counter(cell.id for cell in cells for note in notes(cell, settings) if note[0] == "finished")
    assert written == {cell.id: 1 for cell in cells}
    assert len(killed) == 1
    assert Path(settings.store_url, "enough").exists(), f"one of two slots did not work any more: {after}"


def test_a_cell_that_runs_out_of_memory_is_run_once_more_with_as_much_as_there_is(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(5)]
    out_of_memory: list[tuple[int, float]] = []

    def note(cell: Cell, share: float) -> None:
        out_of_memory.append((cell.seed, share))

    quarter = Resources(cpus=1.5, gpus=0.25)  # one worker at a time
    last = ends_of(run(cells, settings, "need_memory", request=lambda cell: quarter, on_gpu_oom=note), cells)
    assert finished(last) == {0, 2, 4}
    assert [last[seed].attempt for seed in range(5)] == [2, 2, 2, 2, 1]
    shares = [[note[0] for note in notes(cell, settings)] for cell in cells]
    assert shares[:2] == [["share=0.25", "share=1"]] * 2
    assert shares[4] == ["share=0.25"]
    assert (last[1].recorded, last[3].recorded) == (False, False)
    assert "0.25 of a GPU" in last[1].error
    assert "alone on a node" in last[3].error
    assert sorted(out_of_memory) == [(0, 0.25), (1, 0.25), (1, 1.0)]
    assert last[4].gpu_mib == 100.0


def test_a_cell_over_its_time_limit_fails_and_its_slot_is_used_again(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock leaps by a day when the cell begins, so no other cell can be over the limit on a busy machine."""
    from orchestrator.execution.tune import callback, driver

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + 86400 * len(notes(cells[1], settings))

    monkeypatch.setattr(callback, "time", Clock)
    monkeypatch.setattr(driver, "HEALTH_CHECK_SECONDS", 0.1)
    cells = [samples.cell(number) for number in range(4)]
    events = run(cells, settings, "hang_if_seed_is_one", request=lambda cell: ONE_WORKER, cell_limit=1800)
    last = ends_of(events, cells)
    assert finished(last) == {0, 2, 3}
    assert (last[1].attempt, last[1].recorded) == (1, False)
    assert "limit of 30 min" in last[1].error
    assert "--cell-limit" in last[1].error


def test_gpus_that_join_are_asked_for_their_memory(cluster: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.execution.tune import capacity

    sizes = chain([Resources(2, 0)], repeat(Resources(2, 2)))  # two GPUs join
    monkeypatch.setattr(capacity, "cluster_size", lambda: next(sizes))
    monkeypatch.setattr(capacity, "_smallest_on_this_node", lambda: 1024.0)
    packing = Packing(load_catalog())
    size = capacity.cluster_capacity(cluster, packing, device=None)
    assert (packing.gpus, packing.gpu_mib) == (0, None)
    assert size() == Resources(2, 2)
    assert (packing.gpus, packing.gpu_mib) == (2, 1024.0)


def test_an_unusable_store_stops_the_run_and_fails_no_cell(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(50)]
    seen: list[CellEvent] = []
    with pytest.raises(RunStopped, match="the disk is full"):
        run(cells, settings, "fail_on_a_full_disk", on_event=seen.append)
    assert count_ends(seen) == {cell.id: 1 for cell in cells[:2]}
    assert all(event.kind != "failed" for event in seen)
    assert len([event for event in seen if event.kind == "started"]) < 10


def test_requests_that_alternate_keep_their_workers_and_each_sees_only_its_gpus(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(40)]
    requests = [Resources(cpus=0.25, gpus=2.0), Resources(cpus=1, gpus=0.5), Resources(cpus=2)]
    seen = [{"devices=0,1"}, {"devices=0", "devices=1"}, {"devices="}]
    kinds = [2 if number in (18, 38) else int(number % 4 == 0) for number in range(40)]
    events = run(cells, settings, "note_visible_gpus", request=lambda cell: requests[kinds[cell.seed]])
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    noted = [notes(cell, settings)[0] for cell in cells]
    for kind, gpus in enumerate(seen):
        assert {devices for (devices, *_), own in zip(noted, kinds, strict=True) if own == kind} <= gpus
    assert len({process for _, process, _ in noted}) <= 6  # one, two and one, and two more


def test_an_exception_stops_the_workers_and_leaves_the_cluster_usable(settings: RunSettings) -> None:
    cells, events = [samples.cell(number) for number in range(10)], list[CellEvent]()

    def interrupt(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 1:
            signal.raise_signal(signal.SIGINT)

    def fill(event: CellEvent) -> None:
        events.append(event)
        if event.kind == "finished" and event.cell.seed == 3:
            raise OSError("disk full")

    with pytest.raises(KeyboardInterrupt):
        run(cells, settings, "sleep_long", on_event=interrupt)
    with pytest.raises(OSError, match="disk full"):
        run(cells, settings, "write_nothing", request=lambda cell: ONE_WORKER, on_event=fill)
    assert count_ends(events) == {cell.id: 1 for cell in cells[:4]}
    ended = [cell.seed for cell in cells for note in notes(cell, settings) if note[0] == "finished"]
    assert ended[:4] == [0, 1, 2, 3]  # once each: the sleeping cells were not waited for


class Without:
    """An object of Ray that lacks some attributes."""

    def __init__(self, of: object, names: tuple[str, ...]) -> None:
        self._of, self._names = of, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._of, name)


def test_cells_run_once_without_the_names_of_ray_that_are_not_public(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.execution.tune.callback import TuneCallback
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
    cells = [samples.cell(number) for number in range(6)]
    events = run(cells, settings, "write_nothing", request=lambda cell: ONE_WORKER)
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    assert hidden == {("_actor_cache",), lists, ("temporary_state",)}


def append(path: str, word: str) -> None:
    with open(path, "a") as stream:
        stream.write(f"{word}\n")


def refuse() -> None:
    raise UserError("no", hint="never")


def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return os.getpid()


def test_a_graph_on_ray_keeps_order_retries_and_skips(cluster: Resources, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    tasks = {
        "images": GraphTask(append, (log, "images"), cpus=0.5),
        "features": GraphTask(append, (log, "features"), frozenset({"images"}), cpus=0.5),
        "broken": GraphTask(refuse, cpus=0.5),
        "blocked": GraphTask(append, (log, "blocked"), frozenset({"broken", "images"}), cpus=0.5),
        "dying": GraphTask(die_once, (str(tmp_path / "died"),), cpus=0.5),
        "dead": GraphTask(os._exit, (1,), cpus=0.5),
    }
    events = list(run_graph_on_ray(tasks))
    last = {event.key: event for event in events if event.kind != "started"}
    kinds = ("finished", "finished", "failed", "skipped", "finished", "failed")
    assert {key: event.kind for key, event in last.items()} == dict(zip(tasks, kinds, strict=True))
    assert "UserError: no" in last["broken"].error
    assert [last[name].retryable for name in ("broken", "blocked", "dead")] == [False, False, True]
    assert Path(log).read_text().split() == ["images", "features"]
