"""What is hurt and mended: a cluster, the ``grid`` command on it, a store, and what the run has to come to.

``scores`` and ``tracked`` are what a round is judged by: every number a result states but times, and MLflow's runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.store import CorruptArtifact, Store
from tests.helpers.ray_nodes import ROOT, MultiNodeCluster, Process, alive, kill, kill_session, session
from tests.helpers.tracking_server import TrackingServer
from tests.helpers.waiting import PATIENCE, until

GRID = """
title: Faults
description: The demo's few-shot methods on four drawn datasets.
fine_tuning: {epochs: 2, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits, glyph-inks, glyph-capitals]
    sources: {rule: leave_one_out, datasets: [glyph-digits, glyph-inks, glyph-capitals]}
    shots: [1, 4]
    seeds: [1, 2]
    methods:
      - zero_shot
      - linear_probe
      - tip_adapter
      - lp_plus_plus
      - bolt_pooled
      - bolt: {learning_rate: 0.01, epochs: 8}
"""
CELLS = 3 * (1 + 5 * 2 * 2)

FEW_CELLS = """
title: Few cells
description: Two drawn datasets, three methods.
fine_tuning: {epochs: 1, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits, glyph-inks]
    sources: {rule: leave_one_out, datasets: [glyph-digits, glyph-inks]}
    shots: [1, 4]
    seeds: [1, 2]
    methods: [zero_shot, {linear_probe: {epochs: 2}}, {bolt: {epochs: 8}}]
"""
FEW_CELLS_COUNT = 2 * (1 + 2 * 2 * 2)

ARTIFACTS = ("images", "features", "heads", "sources", "spectra", "support", "support_features")
CELL_TITLES = ("ray::_Inner.train",)
WORKER_TITLES = ("ray::_Inner", "ray::Worker")
BUILD_TITLES = tuple(f"ray::{kind}/" for kind in ARTIFACTS)

REST_SECONDS = 120.0
"""Workers of a killed driver end within seconds, those of a killed head after the minute that Ray waits for it."""


@dataclass(frozen=True)
class Ended:
    """How one ``grid`` command ended.

    Attributes:
        code: its exit code, negative for the signal that ended it.
        said: the end of what it printed.
    """

    code: int
    said: str


class Driver:
    """One ``grid`` command under way."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log, self._begun = log, log.stat().st_size if log.exists() else 0
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self.pid, self.started = self._process.pid, time.time()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """``kill -9`` the command itself; what it has started is left to find that out."""
        kill(self.pid)
        self._process.wait()

    def wait(self, seconds: float) -> Ended:
        """Wait for its end. Raises ``TimeoutError`` for one that does not come to it; it is killed then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.close()
            raise TimeoutError(f"the command did not end in {seconds:.0f} s: {self.said()[-1000:]}") from None
        return Ended(code, self.said())

    def said(self) -> str:
        """What it has printed so far."""
        with open(self.log, "rb") as stream:
            stream.seek(self._begun)
            return stream.read().decode("utf-8", "replace")

    def close(self) -> None:
        """End it with all it has started that is still there."""
        kill_session(self.pid)
        self._process.wait()

    def left(self) -> list[Process]:
        """What is still there of what it has started."""
        return session(self.pid)


class Watch:
    """Notes when each result and each artifact is first seen; a thread that ends with the context."""

    def __init__(self, store: Path) -> None:
        self._store, self._over = store, threading.Event()
        self.results: dict[str, float] = {}
        self.artifacts: dict[str, float] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            now = time.time()
            for name in _names(self._store / "results"):
                if name.endswith(".json") and not name.startswith("."):
                    self.results.setdefault(name, now)
            for kind in ARTIFACTS:
                for name in _names(self._store / kind):
                    if (self._store / kind / name / "manifest.json").exists():
                        self.artifacts.setdefault(f"{kind}/{name}", now)

    def next_cell(self, moment: float) -> float | None:
        """Seconds from a moment to the next cell that finished."""
        return min((seen - moment for seen in self.results.values() if seen > moment), default=None)

    def forget(self, name: str) -> None:
        """A result was damaged: it counts when it is there again."""
        self.results.pop(name, None)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@dataclass
class World:
    """One grid in one store on one cluster.

    Attributes:
        folder: of the grid file, the store, the log and passing files.
        cluster: where it runs.
        server: the tracking server; ``None`` for the database in the store.
        cells: how many the grid has.
        disk: bytes of a disk of the store's own, which can be filled; needs root.
        module, options, variables: of the command: its module, more words, and its environment beside the usual.
        ends: how the commands ended so far.
        begun: every command that was started.
    """

    folder: Path
    cluster: MultiNodeCluster
    server: TrackingServer | None = None
    disk: int = 0
    cells: int = CELLS
    grid: str = GRID
    module: str = "orchestrator"
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    driver: Driver | None = None
    ends: list[Ended] = field(default_factory=list)
    begun: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        for made in (self.folder, self.store, self.scratch):
            made.mkdir(parents=True, exist_ok=True)
        if self.disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.disk}", "tmpfs", self.store], check=True)
        self.grid_file.write_text(self.grid)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def scratch(self) -> Path:
        """Where its processes put passing files; what stays here was left behind."""
        return self.folder / "tmp"

    @property
    def tracking_uri(self) -> str:
        """Where the runs are."""
        return self.server.uri if self.server is not None else f"sqlite:///{self.store}/mlflow/mlflow.db"

    @property
    def grid_file(self) -> Path:
        return self.folder / f"{self.folder.name}.yaml"

    @property
    def environment(self) -> dict[str, str]:
        added = {"TMPDIR": str(self.scratch), "COLUMNS": "160"}
        if self.server is not None:
            added["MLFLOW_TRACKING_URI"] = self.server.uri
        return {**self.cluster.driver_environment, **added, **self.variables}

    def command(self, *more: str) -> list[str]:
        """The command that is repeated."""
        grid = [sys.executable, "-m", self.module, "grid", str(self.grid_file)]
        return [*grid, "--store", str(self.store), *self.options, *more]

    def start(self) -> Driver:
        """Start the command, after whatever is down of the cluster has been brought up again."""
        self.cluster.mend()
        self.driver = Driver(self.command("--address", self.cluster.address), self.environment, self.folder / "log.txt")
        self.begun.append(self.driver)
        return self.driver

    def left(self) -> list[Process]:
        """What is still there of what ended commands had started, and of their workers."""
        ended = [driver for driver in self.begun if driver is not self.driver]
        there = [process for driver in ended for process in driver.left()]
        return there + (self.cluster.working(WORKER_TITLES + BUILD_TITLES) if self.driver is None else [])

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.alive

    def collect(self, seconds: float) -> Ended:
        """Wait for the command's end, and note it."""
        assert self.driver is not None
        self.ends.append(self.driver.wait(seconds))
        self.driver = None
        return self.ends[-1]

    def kill_driver(self) -> int:
        """``kill -9`` the command; returns what its number was."""
        assert self.driver is not None
        pid = self.driver.pid
        self.driver.kill()
        assert not alive(pid)
        self.ends.append(Ended(-9, ""))
        self.driver = None
        return pid

    def finished(self) -> int:
        """How many results there are, whole or not."""
        return sum(name.endswith(".json") and not name.startswith(".") for name in _names(self.store / "results"))

    def collect_ended(self) -> None:
        """Note the end of a command that has come to it by itself."""
        if self.driver is not None and not self.driver.alive:
            self.collect(5)

    def at_rest(self) -> bool:
        """Whether the workers of a command that was killed come to their end."""
        return until(lambda: not self.cluster.working(WORKER_TITLES + BUILD_TITLES), REST_SECONDS, 0.1)

    def finish(self, repeats: int, seconds: float) -> int:
        """Repeat the command until it says that all is done; how often it took. Raises ``TimeoutError``."""
        for repeat in range(1, repeats + 1):
            if self.driver is None:
                self.start()
            ended = self.collect(seconds)
            if ended.code == 0 and len(scores(self.store)) == self.cells:
                return repeat
        raise TimeoutError(f"not done after the command was repeated {repeats} times: {self.ends[-1].said[-1500:]}")

    def runs(self) -> Counter[tuple[str, str]]:
        """(cell id, status) -> how many runs MLflow has of the grid's cells."""
        return tracked(self.tracking_uri, self.grid_file.stem)

    def tracks(self, cells: Iterable[str]) -> bool:
        """Whether MLflow has exactly one finished run of each of these cells, and no other."""
        return dict(self.runs()) == {(cell, "FINISHED"): 1 for cell in cells}

    def sync(self) -> str:
        """Have the runs brought over that could not be tracked; what it said."""
        command = [sys.executable, "-m", "orchestrator", "sync", str(self.grid_file), "--store", str(self.store)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=self.environment, timeout=PATIENCE)
        return done.stdout + done.stderr

    def close(self) -> None:
        """End the command, if one is under way."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None

    def unmount(self) -> None:
        """Give the store's own disk back; what was on it is then in a folder beside, for somebody to look at."""
        if self.disk:
            kept = self.folder / "kept"
            shutil.copytree(self.store, kept, dirs_exist_ok=True)
            subprocess.run(["umount", "--lazy", self.store], check=True)
            self.disk = 0


def scores(store: Path) -> dict[str, object]:
    """Cell id -> everything a result says about accuracy and training; times left out. Damaged files are none."""
    found: dict[str, object] = {}
    for path in sorted((store / "results").glob("*.json")):
        try:
            result = Store(store).read_result(path.stem)
        except ValueError:
            continue
        found[path.stem] = (result.evaluations, result.curves, result.details, result.trainable_parameters)
    return found


def tracked(uri: str, experiment: str) -> Counter[tuple[str, str]]:
    """(cell id, status) -> how many runs of cells the experiment has."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return Counter()
    runs = client.search_runs([found.experiment_id], "tags.kind = 'cell'", max_results=5000)
    return Counter((run.data.tags["run_key"], run.info.status) for run in runs)


def unsound_artifacts(store: Path) -> dict[str, str]:
    """Address -> what is wrong with it, of artifacts that have a manifest and are not what it says."""
    there = Store(store)
    unsound = {}
    for kind in ARTIFACTS:
        for address in there.addresses(kind):
            try:
                found = there.artifact(address)
                assert found is not None
                found.verify()
            except CorruptArtifact as error:
                unsound[address] = str(error)
    return unsound


def leftovers(store: Path, scratch: Path) -> dict[str, int]:
    """What attempts that were killed left behind: how many of each kind."""
    manifests = store.glob("*/*/manifest.json")
    attempts = sum(_attempts(path) - 1 for path in manifests)
    parts = sum(1 for folder, _, names in os.walk(store) for name in names if name.endswith(".part"))
    return {"attempts": attempts, "parts": parts, "passing": len(_names(scratch))}


def _attempts(manifest: Path) -> int:
    return sum(entry.is_dir() for entry in os.scandir(manifest.parent))


def copy_artifacts(built: Path, store: Path) -> None:
    """A store with the artifacts of another one, and no results."""
    for kind in ARTIFACTS:
        if (built / kind).is_dir():
            shutil.copytree(built / kind, store / kind, dirs_exist_ok=True)


def manifest_of(address: Path) -> dict[str, Any]:
    """An artifact's manifest as it is."""
    data: dict[str, Any] = json.loads((address / "manifest.json").read_text())
    return data
