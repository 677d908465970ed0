"""The faults, one function each. A function injects its fault, checks that it took effect, and returns its target.

It returns ``None`` when there was no target. ``Fault.when`` says when a fault can be injected:

``cell``, ``build``
    while a worker measures a cell, or builds an artifact;
``work``
    while a worker does either;
``driver``
    while the command runs, from its first moment;
``tracking``
    while the command runs and tracks its cells on a server;
``disk``
    while a worker does either, and the store has a disk of its own;
``idle``
    while neither the command nor any worker runs; a running command is killed first. Such a fault is what a broken disk
    or an interrupted copy does between two commands.
"""

import errno
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from orchestrator.store.lease import Owner
from tests.helpers.grid_run import ARTIFACTS, BUILD_TITLES, CELL_TITLES, GridRun
from tests.helpers.ray_nodes import Node, Process, alive, kill
from tests.helpers.tracking_servers import Server
from tests.helpers.waiting import until

When = Literal["cell", "build", "work", "driver", "tracking", "disk", "idle"]
Item = TypeVar("Item")
DRIVER_SECONDS = 120.0
"""How long a command may take to notice that its cluster is gone, and to end."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        when: when the fault can be injected; the module's docstring has the meanings.
        inject: a function that injects the fault. Raises ``AssertionError`` when the fault took no effect.
        weight: how often the fault is drawn, relative to other faults.
    """

    name: str
    when: When
    inject: Callable[[GridRun, np.random.Generator], str | None]
    weight: float


FAULTS: dict[str, Fault] = {}


def fault(when: When, weight: float = 1.0) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    def register(inject: Callable[..., str | None]) -> Callable[..., str | None]:
        FAULTS[inject.__name__] = Fault(inject.__name__, when, inject, weight)
        return inject

    return register


def can_inject(grid_run: GridRun, when: When) -> bool:
    """Return whether a fault with this ``when`` can be injected now."""
    work = CELL_TITLES + BUILD_TITLES
    titles = {"cell": CELL_TITLES, "build": BUILD_TITLES, "work": work, "disk": work}.get(when)
    if (when == "tracking" and grid_run.server is None) or (when == "disk" and not grid_run.disk):
        return False
    return grid_run.running and (titles is None or bool(grid_run.cluster.find_workers(titles)))


def pick(rng: np.random.Generator, items: Sequence[Item]) -> Item | None:
    """Return a random item; ``None`` when there are none."""
    return items[int(rng.integers(len(items)))] if items else None


def _kill_process(process: Process | None) -> str | None:
    if process is None:
        return None
    kill(process.pid)
    assert until(lambda: not process.alive), f"{process} is still there"
    return f"{process.title.split()[0]} ({process.pid})"


@fault("cell", weight=3)
def kill_cell_worker(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    return _kill_process(pick(rng, grid_run.cluster.find_workers(CELL_TITLES)))


@fault("build", weight=3)
def kill_builder(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    return _kill_process(pick(rng, grid_run.cluster.find_workers(BUILD_TITLES)))


@fault("driver", weight=3)
def kill_driver(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill the command itself (``kill -9``)."""
    return f"process {grid_run.kill_driver()}"


def _random_node(grid_run: GridRun, rng: np.random.Generator) -> Node | None:
    return pick(rng, [node for node in grid_run.cluster.nodes if node.raylet is not None])


@fault("work", weight=1.5)
def kill_raylet(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill a node's ``raylet`` (``kill -9``); its workers end by themselves. The node joins again."""
    node = _random_node(grid_run, rng)
    killed = _kill_process(node.raylet) if node else None
    if killed:
        _join_again(grid_run, rng)
    return killed


def _kill_all(node: Node) -> int:
    """Kill all processes of a node at once; return how many there were."""
    processes = node.processes()
    node.kill()
    assert not (left := [process for process in processes if process.alive]), f"{left} are still there"
    return len(processes)


@fault("work", weight=1.5)
def kill_node(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill all processes of a worker node at once, as a power failure does. The node joins again."""
    node = _random_node(grid_run, rng)
    if node is None:
        return None
    count = _kill_all(node)
    _join_again(grid_run, rng)
    return f"{node.name}, {count} processes"


def _join_again(grid_run: GridRun, rng: np.random.Generator) -> None:
    time.sleep(float(rng.uniform(0, 3)))
    if grid_run.cluster.head_is_up:
        grid_run.cluster.restart_dead_nodes()


def _freeze(send: Callable[[int], object], pids: Sequence[int], seconds: float) -> str:
    """Freeze processes (SIGSTOP) for some seconds. ``send`` sends all of them a signal."""
    send(signal.SIGSTOP)
    try:
        assert until(lambda: all(_state(pid) in "TZX" for pid in pids)), f"some of {pids} run on"
        time.sleep(seconds)
    finally:
        send(signal.SIGCONT)
    return f"{len(pids)} processes, {seconds:.0f} s"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@fault("work", weight=1)
def freeze_node(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Freeze all processes of a worker node; after a long freeze the cluster has given the node up."""
    node = _random_node(grid_run, rng)
    if node is None:
        return None
    seconds = float(rng.choice([1.0, 4.0, 18.0], p=[0.4, 0.4, 0.2]))
    return f"{node.name}, {_freeze(node.signal, [process.pid for process in node.processes()], seconds)}"


@fault("work", weight=0.5)
def kill_head(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill all processes of the head; the command has to end by itself, without a traceback."""
    head = grid_run.cluster.head
    if head is None or grid_run.driver is None:
        return None
    count = _kill_all(head)
    ended = grid_run.wait_for_end(DRIVER_SECONDS)
    assert ended.code != 0, "the command ended with 0 without a cluster"
    return f"{count} processes; the command ended with {ended.code}"


@fault("work", weight=0.7)
def kill_control_service(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill only the head's ``gcs_server`` (``kill -9``); the command has to end by itself."""
    head = grid_run.cluster.head
    if head is None or grid_run.driver is None:
        return None
    killed = _kill_process(next((p for p in head.processes() if p.title.split(" ")[0].endswith("/gcs_server")), None))
    if killed is None:
        return None
    ended = grid_run.wait_for_end(DRIVER_SECONDS)
    head.kill()
    return f"{killed}; the command ended with {ended.code}"


def _kill_server(server: Server | None) -> str | None:
    if server is None or not (tree := server.tree()):
        return None
    server.kill()
    return f"{len(tree)} processes"


@fault("tracking", weight=2)
def kill_tracking_server(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill MLflow's server (``kill -9``), which its supervisor starts again."""
    return _kill_server(grid_run.server.mlflow if grid_run.server is not None else None)


@fault("tracking", weight=2)
def kill_database(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Kill PostgreSQL (``kill -9``), which its supervisor starts again."""
    return _kill_server(grid_run.server.postgres if grid_run.server is not None else None)


@fault("tracking", weight=1)
def freeze_tracking_server(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Freeze MLflow's server, which then exists and does not answer."""
    if grid_run.server is None or not (tree := grid_run.server.mlflow.tree()):
        return None
    return _freeze(grid_run.server.mlflow.send, [process.pid for process in tree], float(rng.uniform(2, 10)))


@fault("disk", weight=3)
def fill_disk(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Fill the store's disk, until the command has ended or some seconds have passed."""
    ballast = grid_run.store / "ballast"
    try:
        with open(ballast, "wb") as stream:
            while True:
                os.write(stream.fileno(), bytes(2**16))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    seconds = float(rng.uniform(1, 15))
    until(lambda: not grid_run.running, seconds)
    ended = not grid_run.running
    ballast.unlink()
    return f"{seconds:.0f} s; the command {'ended' if ended else 'went on'}"


def _results(grid_run: GridRun) -> list[Path]:
    return sorted((grid_run.store / "results").glob("[!.]*.json"))


def _cut_off(path: Path | None, rng: np.random.Generator, least: int = 0) -> Path | None:
    """Cut a file off after a random number of bytes, ``least`` or more; return ``None`` if there is nothing to cut."""
    if path is None or not path.exists() or (size := path.stat().st_size) <= least:
        return None
    os.truncate(path, int(rng.integers(least, size)))
    return path


@fault("idle", weight=2)
def truncate_result(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Cut a result off after a random number of bytes."""
    path = _cut_off(pick(rng, _results(grid_run)), rng)
    return path.stem if path else None


@fault("idle", weight=1)
def alter_result(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Change a number in a result: one more correct answer."""
    path = pick(rng, _results(grid_run))
    if path is None:
        return None
    data = json.loads(path.read_text())
    data["evaluations"][0]["correct"] += 1
    path.write_text(json.dumps(data, indent=1))
    return path.stem


@fault("idle", weight=1)
def damage_predictions(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Cut off, change or delete the predictions beside a result."""
    path = pick(rng, [path.with_suffix(".npz") for path in _results(grid_run)])
    if path is None or not path.exists():
        return None
    content, place = bytearray(path.read_bytes()), int(rng.integers(path.stat().st_size))
    how = ("cut off", "changed", "deleted")[int(rng.integers(3))]
    if how == "cut off":
        path.write_bytes(content[:place])
    elif how == "changed":
        content[place] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    return f"{path.stem}, {how}"


@fault("idle", weight=1)
def swap_result(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Copy the result of one cell over that of another."""
    paths = _results(grid_run)
    if len(paths) < 2:
        return None
    one, other = (paths[int(i)] for i in rng.choice(len(paths), 2, replace=False))
    shutil.copyfile(one, other)
    assert json.loads(other.read_text())["id"] == one.stem
    return other.stem


def _manifests(grid_run: GridRun) -> list[Path]:
    return sorted(path for kind in ARTIFACTS for path in (grid_run.store / kind).glob("*/manifest.json"))


def _file_of(grid_run: GridRun, rng: np.random.Generator) -> Path | None:
    manifest = pick(rng, _manifests(grid_run))
    if manifest is None:
        return None
    try:
        files = json.loads(manifest.read_text())["files"]
    except ValueError:  # cut off by another fault
        return None
    return grid_run.store / str(files[sorted(files)[int(rng.integers(len(files)))]][0])


@fault("idle", weight=2)
def flip_bytes(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Flip some bytes of an artifact's file; its size stays the same."""
    path = _file_of(grid_run, rng)
    if path is None or not path.exists() or not path.stat().st_size:
        return None
    content = bytearray(path.read_bytes())
    for position in rng.integers(len(content), size=8):
        content[int(position)] ^= 0xFF
    if bytes(content) == path.read_bytes():
        return None
    path.write_bytes(content)
    return str(path.relative_to(grid_run.store))


@fault("idle", weight=1)
def truncate_artifact(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Cut a file of an artifact off after a random number of bytes."""
    path = _cut_off(_file_of(grid_run, rng), rng)
    return str(path.relative_to(grid_run.store)) if path else None


@fault("idle", weight=1)
def cut_manifest(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Cut an artifact's manifest off after a random number of bytes."""
    path = _cut_off(pick(rng, _manifests(grid_run)), rng, least=1)
    return str(path.parent.relative_to(grid_run.store)) if path else None


@fault("idle", weight=1)
def lose_file(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Delete a file of an artifact and leave its manifest."""
    path = _file_of(grid_run, rng)
    if path is None or not path.exists():
        return None
    path.unlink()
    return str(path.relative_to(grid_run.store))


@fault("idle", weight=1)
def half_written_attempt(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Leave what a killed builder leaves: files that no manifest names."""
    manifest = pick(rng, _manifests(grid_run))
    if manifest is None:
        return None
    folder = manifest.parent / f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "features.safetensors").write_bytes(rng.bytes(1000))
    manifest.unlink()
    return str(folder.relative_to(grid_run.store))


@fault("idle", weight=0.7)
def stale_lease(grid_run: GridRun, rng: np.random.Generator) -> str | None:
    """Leave the lease of a process which does not exist."""
    lease = grid_run.store / "locks" / f"{grid_run.grid_file.stem}.lease"
    lease.parent.mkdir(parents=True, exist_ok=True)
    gone = next(pid for pid in range(99_999, 1, -1) if not alive(pid))
    lease.write_bytes(Owner(pid=gone).content())
    return f"of process {gone}"
