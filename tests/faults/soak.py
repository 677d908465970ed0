"""Seeded random faults over small grids; the outcome of each round is compared with a run without faults.

    python tests/faults/soak.py --faults 200 --seed 0
    python tests/faults/soak.py --seed 0 --round 17        runs round 17 only

A round is a grid in a store of its own. Faults are injected at random moments while the command runs, or between two
commands. Then the same command is repeated until the grid is done. :func:`check_round` checks the outcome.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bolt.seeds import numpy_generator
from tests.faults.faults import FAULTS, Fault, can_inject
from tests.helpers.grid_run import (
    ARTIFACTS,
    CELLS,
    IDLE_SECONDS,
    GridRun,
    copy_artifacts,
    damaged_artifacts,
    leftover_files,
    scores,
)
from tests.helpers.ray_nodes import MultiNodeCluster, exit_on_sigterm
from tests.helpers.tracking_servers import TrackingServer
from tests.helpers.waiting import until

REPEATS = 6
COMMAND_SECONDS = 420.0
WAIT_SECONDS = 60.0
"""The longest wait until a fault can be injected, for example until a worker builds an artifact."""
LEFTOVERS_ALLOWED = 1
"""For each fault and each command: how many attempts, partial files and temporary folders may be left behind."""
DISK_BYTES = 256 * 2**20


@dataclass(frozen=True)
class RoundPlan:
    """What happens in one round.

    Attributes:
        start: how many artifacts exist before the first command: ``empty`` (none), ``half`` or ``built`` (all).
        tracking: whether cells are tracked on a server, instead of in the store.
        disk: whether the store has a small disk of its own.
        faults: the names of the faults, in the order of injection.
        after: for each fault, how many cells are finished before it; faults of builders do not wait for cells.
        waits: for each fault, the further seconds before it.
    """

    start: str
    tracking: bool
    disk: bool
    faults: tuple[str, ...]
    after: tuple[int, ...]
    waits: tuple[float, ...]


@dataclass(frozen=True)
class Injection:
    """A fault that took effect, and its target."""

    fault: str
    target: str


@dataclass
class RoundOutcome:
    """What happened in a round, and the problems that were found."""

    number: int
    start: str
    injections: list[Injection] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    synced: bool = False
    seconds: float = 0.0
    leftovers: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def draw_round(seed: int, number: int, only: tuple[str, ...] = ()) -> RoundPlan:
    """Draw a round from the seed and its number, with the faults named in ``only``, by default with all faults."""
    rng = numpy_generator("faults", seed, number)
    tracking, disk = bool(rng.random() < 0.4), bool(rng.random() < 0.2)
    without = {need for need, there in (("tracking", tracking), ("disk", disk)) if not there}
    kinds = [f for name, f in FAULTS.items() if (not only or name in only) and f.when not in without]
    weights = np.array([fault.weight for fault in kinds])
    count = int(rng.integers(5, 10))
    names = [kinds[int(i)].name for i in rng.choice(len(kinds), count, p=weights / weights.sum())]
    start = str(rng.choice(["empty", "half", "built"], p=[0.2, 0.5, 0.3]))
    # Faults of builders come first, because nothing is left to build later.
    names.sort(key=lambda name: FAULTS[name].when != "build")
    # A quarter are injected before the first cell is finished, the others at later cells.
    after = sorted(int(a) for a in rng.integers(1, int(0.9 * CELLS), count) * (rng.random(count) > 0.25))
    waits = tuple(float(wait) for wait in rng.exponential(0.7, count))
    return RoundPlan(start, tracking, disk, tuple(names), tuple(after), waits)


def prepare(grid_run: GridRun, plan: RoundPlan, reference: Path, rng: np.random.Generator) -> None:
    """Copy artifacts of the reference run into the round's store: none, a random part, or all."""
    if plan.start == "empty":
        return
    copy_artifacts(reference, grid_run.store)
    (grid_run.store / "mlflow").mkdir()
    shutil.copyfile(reference.parent / "empty.db", grid_run.store / "mlflow" / "mlflow.db")
    if plan.start == "half":
        for kind in ARTIFACTS:
            for folder in sorted((grid_run.store / kind).glob("*")):
                if rng.random() < 0.4:
                    shutil.rmtree(folder)


def inject_all(grid_run: GridRun, plan: RoundPlan, rng: np.random.Generator, outcome: RoundOutcome) -> None:
    for name, after, wait in zip(plan.faults, plan.after, plan.waits, strict=True):
        fault = FAULTS[name]
        if not _wait_until_possible(grid_run, fault, after, wait):
            outcome.missed.append(name)
            continue
        if fault.when == "idle":
            if grid_run.running:
                record(outcome, FAULTS["kill_driver"], FAULTS["kill_driver"].inject(grid_run, rng))
            grid_run.note_end()
            if not grid_run.wait_until_idle():
                outcome.problems.append(f"workers of a killed command did not end in {IDLE_SECONDS:.0f} s")
        record(outcome, fault, fault.inject(grid_run, rng))
        grid_run.note_end()


def _wait_until_possible(grid_run: GridRun, fault: Fault, after: int, wait: float) -> bool:
    """Wait until a fault can be injected; return ``False`` if that moment does not come."""
    if (fault.when == "tracking" and grid_run.server is None) or (fault.when == "disk" and not grid_run.disk):
        return False
    grid_run.note_end()
    enough = grid_run.result_count() >= after
    if fault.when == "idle" and enough and not grid_run.running:
        return True  # the previous command was killed, and none has run since
    if not grid_run.running and grid_run.result_count() < grid_run.cells:
        grid_run.start()

    def too_late() -> bool:
        return not grid_run.running or (fault.when == "build" and can_inject(grid_run, "cell"))

    until(lambda: fault.when == "build" or grid_run.result_count() >= after or too_late(), COMMAND_SECONDS)
    until(lambda: can_inject(grid_run, fault.when) or too_late(), WAIT_SECONDS)
    until(too_late, wait)
    if fault.when == "idle":
        return True
    until(lambda: can_inject(grid_run, fault.when) or too_late(), WAIT_SECONDS)
    return can_inject(grid_run, fault.when)


def record(outcome: RoundOutcome, fault: Fault, target: str | None) -> None:
    """Record that the fault was injected or, where ``target`` is ``None``, that there was no target."""
    if target is None:
        outcome.missed.append(fault.name)
    else:
        outcome.injections.append(Injection(fault.name, target))


def check_round(grid_run: GridRun, expected: dict[str, object], targets: list[str]) -> list[str]:
    """Return the problems of a round after its last command; there should be none.

    Args:
        grid_run: the round's grid.
        expected: the scores of the run without faults.
        targets: the targets of the faults.
    """
    problems = []
    found = scores(grid_run.store)
    if missing := expected.keys() - found.keys():
        problems.append(f"{len(missing)} cells without a result, first {min(missing)}")
    if more := found.keys() - expected.keys():
        problems.append(f"{len(more)} results too many, first {min(more)}")
    if other := [cell for cell in found if cell in expected and found[cell] != expected[cell]]:
        problems.append(f"{len(other)} results differ from the run without faults, first {other[0]}")
    # A damaged artifact stays damaged until a cell reads it; only then is the damage noticed.
    known = {"/".join(target.split("/")[:2]) for target in targets}
    if damaged := [why for address, why in damaged_artifacts(grid_run.store).items() if address not in known]:
        problems.append(f"{len(damaged)} artifacts differ from their manifests, first {damaged[0]}")
    if not until(lambda: not grid_run.leftover_processes(), 30):
        problems.append(f"processes are left: {grid_run.leftover_processes()[:3]}")
    leftovers = leftover_files(grid_run.store, grid_run.scratch)
    if sum(leftovers.values()) > LEFTOVERS_ALLOWED * (len(grid_run.ends) + len(targets)):
        problems.append(f"{len(grid_run.ends)} commands and {len(targets)} faults have left too much: {leftovers}")
    if not grid_run.is_tracked(expected):
        runs, wanted = grid_run.tracked_runs(), {(cell, "FINISHED"): 1 for cell in expected}
        wrong = {key: runs.get(key, 0) for key in runs.keys() | wanted.keys() if runs.get(key, 0) != wanted.get(key, 0)}
        problems.append(f"MLflow has not one finished run per cell: {dict(list(wrong.items())[:3])}")
    if crashed := [end.output for end in grid_run.ends if "Traceback (most recent" in end.output]:
        problems.append(f"{len(crashed)} commands showed a traceback: {crashed[0][-600:]}")
    if failures := list((grid_run.store / "failures").glob("[!.]*.json")):
        problems.append(f"{len(failures)} failures are on record, first {failures[0].name}")
    return problems


def run_round(
    folder: Path,
    cluster: MultiNodeCluster,
    server: TrackingServer | None,
    seed: int,
    number: int,
    only: tuple[str, ...] = (),
) -> RoundOutcome:
    """Run one round and check it. Faults of a server or of a disk are left out on a machine without one."""
    plan, rng = draw_round(seed, number, only), numpy_generator("strikes", seed, number)
    outcome, begun = RoundOutcome(number, plan.start), time.monotonic()
    place = folder / f"round-{number}"
    shutil.rmtree(place, ignore_errors=True)
    disk = DISK_BYTES if plan.disk and os.geteuid() == 0 else 0
    grid_run = GridRun(place, cluster, server if plan.tracking else None, disk)
    reference = folder / "reference" / "store"
    expected = scores(reference)
    try:
        prepare(grid_run, plan, reference, rng)
        inject_all(grid_run, plan, rng, outcome)
        grid_run.repeat_until_done(REPEATS, COMMAND_SECONDS)
        if grid_run.server is not None and not grid_run.is_tracked(expected):
            outcome.synced = True
            grid_run.sync()
        outcome.problems += check_round(grid_run, expected, [injection.target for injection in outcome.injections])
    except (AssertionError, TimeoutError, RuntimeError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.problems.append(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    finally:
        grid_run.close()
        outcome.leftovers = leftover_files(grid_run.store, grid_run.scratch)
        grid_run.unmount()
    outcome.codes = [end.code for end in grid_run.ends]
    failed = (end.output.splitlines() for end in grid_run.ends if end.code)
    outcome.errors = [line for lines in failed for line in lines if line.startswith("error:")]
    outcome.seconds = time.monotonic() - begun
    if not outcome.problems:
        shutil.rmtree(place)
    return outcome


def make_reference(folder: Path) -> None:
    """Run the grid without faults, in one process without Ray, and make an empty tracking database."""
    from orchestrator.tracking.client import open_client

    place = folder / "reference"
    if (place / "store" / "reports").exists():
        return
    cluster = MultiNodeCluster(folder / "none", workers=0)  # never started
    grid_run = GridRun(place, cluster)
    command = grid_run.command("--local")
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=grid_run.environment)
    if done.returncode:
        raise RuntimeError(f"the run without faults fails: {done.stdout}{done.stderr}")
    open_client(f"sqlite:///{place}/empty.db")


def main() -> int:
    """Run rounds until enough faults were injected; return 1 if any round had a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, help="run the round with this number only")
    parser.add_argument("--kinds", default="", help="only these faults, for example kill_driver,truncate_result")
    parser.add_argument("--folder", type=Path, help="working folder; a later soak takes the reference run from it")
    given = parser.parse_args()
    only = tuple(filter(None, given.kinds.split(",")))
    if unknown := set(only) - FAULTS.keys():
        parser.error(f"unknown faults {sorted(unknown)}; there are {', '.join(FAULTS)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))  # short: sockets lie in it
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # PostgreSQL is another user when this one is root
    print(f"in {folder}", flush=True)
    outcomes: list[RoundOutcome] = []
    with exit_on_sigterm():
        make_reference(folder)
        with MultiNodeCluster(folder / "ray") as cluster, TrackingServer(folder / "tracking") as server:
            if server.postgres is None:
                print("PostgreSQL is not installed: runs are tracked on SQLite, and kill_database does nothing")
            for number in [given.round] if given.round is not None else range(10_000):
                if injected(outcomes) >= given.faults:
                    break
                cluster.restart_dead_nodes()
                outcomes.append(run_round(folder, cluster, server, given.seed, number, only))
                print(progress(outcomes, given.faults), flush=True)
                if outcomes[-1].problems:
                    print(f"  repeat it: python tests/faults/soak.py --seed {given.seed} --round {number}", flush=True)
    bad = [outcome.number for outcome in outcomes if outcome.problems]
    counts = Counter(injection.fault for outcome in outcomes for injection in outcome.injections)
    print("", *(f"{name:22} {count:6}" for name, count in sorted(counts.items())), sep="\n")
    print(f"\n{injected(outcomes)} faults in {len(outcomes)} rounds, problems in {bad}")
    (folder / "soak.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 1 if bad else 0


def injected(outcomes: list[RoundOutcome]) -> int:
    return sum(len(outcome.injections) for outcome in outcomes)


def progress(outcomes: list[RoundOutcome], wanted: int) -> str:
    """Return what the last round did, and how many faults of those wanted were injected so far."""
    last = outcomes[-1]
    names = ", ".join(injection.fault for injection in last.injections)
    line = (
        f"round {last.number} ({last.start}) {last.seconds:.0f} s: {names}; exit codes {last.codes}; "
        f"left {last.leftovers}; {injected(outcomes)} of {wanted} faults"
    )
    return "\n".join([line, *(f"  {error}" for error in last.errors), *(f"  PROBLEM {each}" for each in last.problems)])


if __name__ == "__main__":
    sys.exit(main())
