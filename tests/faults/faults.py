"""The faults, one function each: it strikes, sees that it was effective, and says what it hit, ``None`` for nothing.

``needs`` says when one can strike:

``cell``, ``build``
    while a worker measures a cell, or builds an artifact;
``work``
    while a worker does either;
``driver``
    while the command runs, from its first moment;
``tracking``
    while the command runs and tracks its cells on a server.
``disk``
    while a worker does either, and its store has a disk of its own.
``rest``
    while neither the command nor any worker runs: what a disk or an interrupted copy does between two commands. A
    command that is under way is killed for it.
"""

from __future__ import annotations

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

from tests.helpers.grid_run import ARTIFACTS, BUILD_TITLES, CELL_TITLES, World
from tests.helpers.ray_nodes import Node, Process, alive, kill
from tests.helpers.waiting import until

Need = Literal["cell", "build", "work", "driver", "tracking", "disk", "rest"]
Item = TypeVar("Item")

DRIVER_ENDS = 120.0
"""Seconds that a command may take to notice that its cluster is gone, and to end."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        needs: see the module's docstring.
        strike: does it. Raises ``AssertionError`` when it was not effective.
        weight: how often it is drawn, against the others.
    """

    name: str
    needs: Need
    strike: Callable[[World, np.random.Generator], str | None]
    weight: float


FAULTS: dict[str, Fault] = {}


def fault(needs: Need, weight: float = 1.0) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Register a function as the fault of its name."""

    def register(strike: Callable[..., str | None]) -> Callable[..., str | None]:
        FAULTS[strike.__name__] = Fault(strike.__name__, needs, strike, weight)
        return strike

    return register


def ready(world: World, needs: Need) -> bool:
    """Whether a fault that needs this can strike now."""
    titles = {"cell": CELL_TITLES, "build": BUILD_TITLES, "work": CELL_TITLES + BUILD_TITLES}.get(needs)
    if needs == "disk":
        titles = CELL_TITLES + BUILD_TITLES
    if (needs == "tracking" and world.server is None) or (needs == "disk" and not world.disk):
        return False
    return world.running and (titles is None or bool(world.cluster.working(titles)))


def pick(rng: np.random.Generator, items: Sequence[Item]) -> Item | None:
    """One of them, ``None`` of none."""
    return items[int(rng.integers(len(items)))] if items else None


# -- processes -----------------------------------------------------------------------------------------------------


def _kill_worker(world: World, rng: np.random.Generator, titles: tuple[str, ...]) -> str | None:
    struck = pick(rng, world.cluster.working(titles))
    return _killed(struck) if struck is not None else None


def _killed(struck: Process) -> str:
    kill(struck.pid)
    assert until(lambda: not struck.alive), f"{struck} is still there"
    return f"{struck.title.split()[0]} ({struck.pid})"


@fault("cell", weight=3)
def kill_cell_worker(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of a worker that measures a cell."""
    return _kill_worker(world, rng, CELL_TITLES)


@fault("build", weight=3)
def kill_builder(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of a worker that builds an artifact."""
    return _kill_worker(world, rng, BUILD_TITLES)


@fault("driver", weight=3)
def kill_driver(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of the command itself."""
    return f"process {world.kill_driver()}"


def _some_node(world: World, rng: np.random.Generator) -> Node | None:
    return pick(rng, [node for node in world.cluster.nodes if node.raylet is not None])


@fault("work", weight=1.5)
def kill_raylet(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of the process that makes a machine a node; its workers end by themselves. It joins again."""
    node = _some_node(world, rng)
    raylet = node.raylet if node else None
    if node is None or raylet is None:
        return None
    kill(raylet.pid)
    assert until(lambda: not raylet.alive), f"{raylet} is still there"
    _join_again(world, rng)
    return f"{node.name} ({raylet.pid})"


@fault("work", weight=1.5)
def kill_node(world: World, rng: np.random.Generator) -> str | None:
    """Every process of a worker node at once, as when its power fails. It joins again."""
    node = _some_node(world, rng)
    if node is None:
        return None
    there = node.processes()
    node.kill()
    assert not (left := [process for process in there if process.alive]), f"{left} are still there"
    _join_again(world, rng)
    return f"{node.name}, {len(there)} processes"


def _join_again(world: World, rng: np.random.Generator) -> None:
    time.sleep(float(rng.uniform(0, 3)))
    if world.cluster.head_works:
        world.cluster.mend()


@fault("work", weight=1)
def freeze_node(world: World, rng: np.random.Generator) -> str | None:
    """SIGSTOP to every process of a worker node for a while; a long one has it given up before it wakes."""
    node = _some_node(world, rng)
    if node is None:
        return None
    seconds = float(rng.choice([1.0, 4.0, 18.0], p=[0.4, 0.4, 0.2]))
    count = node.signal(signal.SIGSTOP)
    try:
        stopped = until(lambda: all(_state(process.pid) in "TZX" for process in node.processes()))
        assert stopped, f"{node.name} runs on"
        time.sleep(seconds)
    finally:
        node.signal(signal.SIGCONT)
    return f"{node.name}, {count} processes, {seconds:.0f} s"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@fault("work", weight=0.5)
def kill_head(world: World, rng: np.random.Generator) -> str | None:
    """Every process of the head node; the command has to end by itself, without a traceback."""
    head = world.cluster.head
    if head is None or world.driver is None:
        return None
    there = head.processes()
    head.kill()
    assert not (left := [process for process in there if process.alive]), f"{left} are still there"
    ended = world.collect(DRIVER_ENDS)
    assert ended.code != 0, "the command ended well without a cluster"
    return f"{len(there)} processes; the command ended with {ended.code}"


@fault("work", weight=0.7)
def kill_control_service(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of the head's ``gcs_server`` alone; the command has to end by itself."""
    head = world.cluster.head
    if head is None or world.driver is None:
        return None
    service = next((p for p in head.processes() if p.title.split(" ")[0].endswith("/gcs_server")), None)
    if service is None:
        return None
    kill(service.pid)
    assert until(lambda: not service.alive), f"{service} is still there"
    ended = world.collect(DRIVER_ENDS)
    head.kill()
    return f"process {service.pid}; the command ended with {ended.code}"


# -- what a run leans on -------------------------------------------------------------------------------------------


def _kill_server(world: World, word: str) -> str | None:
    struck = world.server.child(word) if world.server is not None else None
    return _killed(struck) if struck is not None else None


@fault("tracking", weight=2)
def kill_tracking_server(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of MLflow's server, which what supervises it starts again."""
    return _kill_server(world, "mlflow")


@fault("tracking", weight=2)
def kill_database(world: World, rng: np.random.Generator) -> str | None:
    """``kill -9`` of PostgreSQL, which what supervises it starts again."""
    return _kill_server(world, "postgres")


@fault("tracking", weight=1)
def freeze_tracking_server(world: World, rng: np.random.Generator) -> str | None:
    """SIGSTOP to MLflow's server for a while: it is there and does not answer."""
    if world.server is None or not (tree := world.server.tree("mlflow")):
        return None
    seconds = float(rng.uniform(2, 10))
    for process in tree:
        kill(process.pid, signal.SIGSTOP)
    try:
        assert until(lambda: all(_state(process.pid) in "TZX" for process in tree)), f"{tree} runs on"
        time.sleep(seconds)
    finally:
        for process in tree:
            kill(process.pid, signal.SIGCONT)
    return f"{len(tree)} processes, {seconds:.0f} s"


@fault("disk", weight=3)
def fill_disk(world: World, rng: np.random.Generator) -> str | None:
    """Not a byte left under the store, until the command has ended or some seconds have passed."""
    ballast = world.store / "ballast"
    try:
        with open(ballast, "wb") as stream:
            while True:
                os.write(stream.fileno(), bytes(2**16))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    seconds = float(rng.uniform(1, 15))
    until(lambda: not world.running, seconds)
    ended = not world.running
    ballast.unlink()
    return f"{seconds:.0f} s; the command {'ended' if ended else 'went on'}"


# -- what lies in the store ----------------------------------------------------------------------------------------


def _results(world: World) -> list[Path]:
    return sorted((world.store / "results").glob("[!.]*.json"))


@fault("rest", weight=2)
def truncate_result(world: World, rng: np.random.Generator) -> str | None:
    """A result of which only the beginning is there."""
    path = pick(rng, _results(world))
    if path is None:
        return None
    size = path.stat().st_size
    os.truncate(path, int(rng.integers(size)))
    assert path.stat().st_size < size
    return path.stem


@fault("rest", weight=1)
def alter_result(world: World, rng: np.random.Generator) -> str | None:
    """A result with another number in it: one right answer more than were given."""
    path = pick(rng, _results(world))
    if path is None:
        return None
    data = json.loads(path.read_text())
    data["evaluations"][0]["correct"] += 1
    path.write_text(json.dumps(data, indent=1))
    return path.stem


@fault("rest", weight=1)
def swap_result(world: World, rng: np.random.Generator) -> str | None:
    """Under a cell's name, the result of another one."""
    paths = _results(world)
    if len(paths) < 2:
        return None
    one, other = (paths[int(i)] for i in rng.choice(len(paths), 2, replace=False))
    shutil.copyfile(one, other)
    assert json.loads(other.read_text())["id"] == one.stem
    return other.stem


def _manifests(world: World) -> list[Path]:
    return sorted(path for kind in ARTIFACTS for path in (world.store / kind).glob("*/manifest.json"))


def _file_of(world: World, rng: np.random.Generator) -> Path | None:
    manifest = pick(rng, _manifests(world))
    if manifest is None:
        return None
    try:
        files = json.loads(manifest.read_text())["files"]
    except ValueError:  # cut short by another fault
        return None
    return world.store / str(files[sorted(files)[int(rng.integers(len(files)))]][0])


@fault("rest", weight=2)
def flip_bytes(world: World, rng: np.random.Generator) -> str | None:
    """A file of an artifact with some bytes turned over; its size stays."""
    path = _file_of(world, rng)
    if path is None or not path.exists() or not path.stat().st_size:
        return None
    content = bytearray(path.read_bytes())
    for position in rng.integers(len(content), size=8):
        content[int(position)] ^= 0xFF
    if bytes(content) == path.read_bytes():
        return None
    path.write_bytes(content)
    return str(path.relative_to(world.store))


@fault("rest", weight=1)
def truncate_artifact(world: World, rng: np.random.Generator) -> str | None:
    """A file of an artifact of which only the beginning is there."""
    path = _file_of(world, rng)
    if path is None or not path.exists() or not path.stat().st_size:
        return None
    os.truncate(path, int(rng.integers(path.stat().st_size)))
    return str(path.relative_to(world.store))


@fault("rest", weight=1)
def cut_manifest(world: World, rng: np.random.Generator) -> str | None:
    """A manifest of which only the beginning is there."""
    path = pick(rng, _manifests(world))
    if path is None or path.stat().st_size < 2:
        return None
    os.truncate(path, int(rng.integers(1, path.stat().st_size)))
    return str(path.parent.relative_to(world.store))


@fault("rest", weight=1)
def lose_file(world: World, rng: np.random.Generator) -> str | None:
    """A file of an artifact that is gone while its manifest is there."""
    path = _file_of(world, rng)
    if path is None or not path.exists():
        return None
    path.unlink()
    return str(path.relative_to(world.store))


@fault("rest", weight=1)
def half_written_attempt(world: World, rng: np.random.Generator) -> str | None:
    """What a builder leaves that was killed while it wrote: files without a manifest that names them."""
    manifest = pick(rng, _manifests(world))
    if manifest is None:
        return None
    folder = manifest.parent / f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "features.safetensors").write_bytes(rng.bytes(1000))
    manifest.unlink()
    return str(folder.relative_to(world.store))


@fault("rest", weight=0.7)
def stale_lock(world: World, rng: np.random.Generator) -> str | None:
    """A lock file that names a process which is gone."""
    lock = world.store / "locks" / f"{world.grid_file.stem}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    gone = next(pid for pid in range(99_999, 1, -1) if not alive(pid))
    lock.write_text(str(gone))
    return f"of process {gone}"
