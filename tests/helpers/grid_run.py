"""The ``grid`` command on a cluster and a store that tests damage; the command is repeated until the grid is done.

Tests compare two things with a run without faults: ``scores``, every number of a result except times, and
``tracked_runs``, MLflow's runs.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.store import CorruptArtifact, Store
from tests.helpers.ray_nodes import ROOT, MultiNodeCluster, Process, alive, kill, kill_session, session_processes
from tests.helpers.tracking_servers import TrackingServer
from tests.helpers.waiting import TIMEOUT, until

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
SMALL_GRID = """
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
    methods: [zero_shot, {linear_probe: {epochs: 2}}, {bolt: {epochs: 3}}]
"""
SMALL_GRID_CELLS = 2 * (1 + 2 * 2 * 2)
ARTIFACTS = ("images", "features", "heads", "sources", "spectra", "support", "support_features")
CELL_TITLES = ("ray::_Inner.train",)
WORKER_TITLES = ("ray::_Inner", "ray::Worker")
BUILD_TITLES = tuple(f"ray::{kind}/" for kind in ARTIFACTS)
IDLE_SECONDS = 120.0
"""Workers of a killed driver end within seconds, and those of a killed head after the minute that Ray waits for it."""


@dataclass(frozen=True)
class CommandEnd:
    """The end of one ``grid`` command.

    Attributes:
        code: its exit code, negative for the signal that ended it.
        output: the end of what it printed.
    """

    code: int
    output: str


class Driver:
    """A running ``grid`` command."""

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
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the command itself (``kill -9``), and not the processes that it has started."""
        kill(self.pid)
        self._process.wait()

    def wait(self, seconds: float) -> CommandEnd:
        """Wait until the command ends. If it does not end in time, kill it and raise ``TimeoutError``."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.close()
            raise TimeoutError(f"the command did not end in {seconds:.0f} s: {self.output()[-1000:]}") from None
        return CommandEnd(code, self.output())

    def output(self) -> str:
        """Return what the command has printed so far."""
        with open(self.log, "rb") as stream:
            stream.seek(self._begun)
            return stream.read().decode("utf-8", "replace")

    def close(self) -> None:
        """Kill the command and every process that it has started."""
        kill_session(self.pid)
        self._process.wait()

    def leftover_processes(self) -> list[Process]:
        """Return the processes that the command has started and that still exist."""
        return session_processes(self.pid)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@dataclass
class GridRun:
    """One grid that is run in one store on one cluster, by one command after the other.

    Attributes:
        folder: holds the grid file, the store, the log and temporary files.
        cluster: where the command runs.
        server: the tracking server; ``None`` for the database in the store.
        cells: how many cells the grid has.
        disk: size in bytes of a small disk that holds the store alone; 0 for none. A disk needs root.
        driver: the running command.
        ends: the ends of the commands so far.
        drivers: every command that was started.
    """

    folder: Path
    cluster: MultiNodeCluster
    server: TrackingServer | None = None
    disk: int = 0
    cells: int = CELLS
    grid: str = GRID
    driver: Driver | None = None
    ends: list[CommandEnd] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)

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
        """The folder for temporary files of all processes; files that stay here were left behind."""
        return self.folder / "tmp"

    @property
    def tracking_uri(self) -> str:
        """The address of MLflow's runs."""
        return self.server.uri if self.server is not None else f"sqlite:///{self.store}/mlflow/mlflow.db"

    @property
    def grid_file(self) -> Path:
        return self.folder / f"{self.folder.name}.yaml"

    @property
    def environment(self) -> dict[str, str]:
        added = {"TMPDIR": str(self.scratch), "COLUMNS": "160"}
        if self.server is not None:
            added["MLFLOW_TRACKING_URI"] = self.server.uri
        return {**self.cluster.driver_environment, **added}

    def command(self, *more: str) -> list[str]:
        """Return the command line that is repeated."""
        grid = [sys.executable, "-m", "orchestrator", "grid", str(self.grid_file)]
        return [*grid, "--store", str(self.store), *more]

    def start(self) -> Driver:
        """Start the command, after starting the dead nodes of the cluster."""
        self.cluster.restart_dead_nodes()
        self.driver = Driver(self.command("--address", self.cluster.address), self.environment, self.folder / "log.txt")
        self.drivers.append(self.driver)
        return self.driver

    def leftover_processes(self) -> list[Process]:
        """Return the processes of ended commands, and the workers without a command, that still exist."""
        ended = [driver for driver in self.drivers if driver is not self.driver]
        there = [process for driver in ended for process in driver.leftover_processes()]
        return there + (self.cluster.find_workers(WORKER_TITLES + BUILD_TITLES) if self.driver is None else [])

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.alive

    def wait_for_end(self, seconds: float) -> CommandEnd:
        """Wait for the command's end and record it."""
        self.ends.append(self.driver.wait(seconds))
        self.driver = None
        return self.ends[-1]

    def kill_driver(self) -> int:
        """Kill the command (``kill -9``); return its process id."""
        pid = self.driver.pid
        self.driver.kill()
        assert not alive(pid)
        self.ends.append(CommandEnd(-9, ""))
        self.driver = None
        return pid

    def result_count(self) -> int:
        """Return how many result files there are, damaged ones included."""
        return sum(name.endswith(".json") and not name.startswith(".") for name in _names(self.store / "results"))

    def note_end(self) -> None:
        """Record the end of a command that has ended by itself."""
        if self.driver is not None and not self.driver.alive:
            self.wait_for_end(5)

    def wait_until_idle(self) -> bool:
        """Wait for the workers of a killed command; return whether they end in time."""
        return until(lambda: not self.cluster.find_workers(WORKER_TITLES + BUILD_TITLES), IDLE_SECONDS, 0.1)

    def repeat_until_done(self, repeats: int, seconds: float) -> int:
        """Repeat the command until the grid is done; return how many commands ran. Raises ``TimeoutError``."""
        for repeat in range(1, repeats + 1):
            if self.driver is None:
                self.start()
            ended = self.wait_for_end(seconds)
            if ended.code == 0 and len(scores(self.store)) == self.cells:
                return repeat
        raise TimeoutError(f"not done after the command was repeated {repeats} times: {self.ends[-1].output[-1500:]}")

    def tracked_runs(self) -> Counter[tuple[str, str]]:
        """Return the number of MLflow runs for each (cell id, status) of the grid."""
        return tracked_runs(self.tracking_uri, self.grid_file.stem)

    def is_tracked(self, cells: Iterable[str]) -> bool:
        """Return whether MLflow has exactly one finished run of each of these cells, and no other run."""
        return dict(self.tracked_runs()) == {(cell, "FINISHED"): 1 for cell in cells}

    def sync(self) -> str:
        """Run ``sync``, which writes the MLflow runs that are missing; return its output."""
        command = [sys.executable, "-m", "orchestrator", "sync", str(self.grid_file), "--store", str(self.store)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=self.environment, timeout=TIMEOUT)
        return done.stdout + done.stderr

    def close(self) -> None:
        """Kill the command, if one is running."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None

    def unmount(self) -> None:
        """Unmount the store's own disk, after copying its content to the folder ``kept`` for inspection."""
        if self.disk:
            kept = self.folder / "kept"
            shutil.copytree(self.store, kept, dirs_exist_ok=True)
            subprocess.run(["umount", "--lazy", self.store], check=True)
            self.disk = 0


def scores(store: Path) -> dict[str, object]:
    """Return, by cell id, every number of each result except times. Damaged results are left out."""
    found: dict[str, object] = {}
    for path in sorted((store / "results").glob("*.json")):
        try:
            result = Store(store).read_result(path.stem)
        except ValueError:
            continue
        found[path.stem] = (result.evaluations, result.curves, result.details, result.trainable_parameters)
    return found


def tracked_runs(uri: str, experiment: str) -> Counter[tuple[str, str]]:
    """Return the number of runs in the experiment for each (cell id, status)."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return Counter()
    runs = client.search_runs([found.experiment_id], "tags.kind = 'cell'", max_results=5000)
    return Counter((run.data.tags["run_key"], run.info.status) for run in runs)


def damaged_artifacts(store: Path) -> dict[str, str]:
    """Return, by address, an error for each artifact whose files differ from its manifest."""
    there = Store(store)
    damaged = {}
    for kind in ARTIFACTS:
        for address in there.addresses(kind):
            try:
                found = there.artifact(address)
                found.verify()
            except CorruptArtifact as error:
                damaged[address] = str(error)
    return damaged


def leftover_files(store: Path, scratch: Path) -> dict[str, int]:
    """Return how many files and folders killed processes have left behind, by kind."""
    manifests = store.glob("*/*/manifest.json")
    attempts = sum(_attempts(path) - 1 for path in manifests)
    parts = sum(1 for folder, _, names in os.walk(store) for name in names if name.endswith(".part"))
    return {"attempts": attempts, "parts": parts, "temporary": len(_names(scratch))}


def _attempts(manifest: Path) -> int:
    return sum(entry.is_dir() for entry in os.scandir(manifest.parent))


def copy_artifacts(built: Path, store: Path) -> None:
    """Copy the artifacts of one store into another, without results."""
    for kind in ARTIFACTS:
        if (built / kind).is_dir():
            shutil.copytree(built / kind, store / kind, dirs_exist_ok=True)
