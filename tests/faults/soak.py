"""Seeded random faults over small grids, each round repeated to its end and judged against a run without faults.

    python tests/faults/soak.py --faults 200 --seed 0
    python tests/faults/soak.py --seed 0 --round 17        one round alone, as it was drawn

A round is a grid in a store of its own; faults strike at drawn moments while the command runs, or between two of them;
then the same command is repeated until it says that all is done. What is asked of a round is in :func:`judge`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bolt.seeds import numpy_generator
from tests.faults.faults import FAULTS, Fault, ready
from tests.helpers.grid_run import (
    ARTIFACTS,
    CELLS,
    REST_SECONDS,
    Watch,
    World,
    copy_artifacts,
    leftovers,
    scores,
    unsound_artifacts,
)
from tests.helpers.ray_nodes import MultiNodeCluster, ended_by_sigterm
from tests.helpers.tracking_server import TrackingServer, lacking
from tests.helpers.waiting import until

REPEATS = 6
COMMAND_SECONDS = 420.0
WAIT_SECONDS = 60.0
"""How long a fault waits for its moment, e.g. for a worker that builds something."""

LEFT_BY_EACH = 1
"""Attempts, parts of files and passing folders that a killed process may leave behind, of each fault and command."""

DISK_BYTES = 256 * 2**20

ENDING = frozenset({"kill_driver", "kill_head", "kill_control_service"})
"""Faults that end the command."""

KILLS = frozenset(name for name in FAULTS if name.startswith(("kill", "freeze", "fill")))


@dataclass(frozen=True)
class Drawn:
    """One round as it was drawn.

    Attributes:
        start: how much is built before it begins: ``empty``, ``half`` or ``built``.
        faults: names, in the order they strike.
        after: how many cells are finished before each strikes; those of builders do not wait for any.
        waits: seconds before each, from then on.
        tracking: whether it tracks on a server, instead of in its store.
        disk: whether its store has a small disk of its own.
    """

    start: str
    tracking: bool
    disk: bool
    faults: tuple[str, ...]
    after: tuple[int, ...]
    waits: tuple[float, ...]


@dataclass(frozen=True)
class Strike:
    """A fault that was effective: when it struck, and seconds until another cell was finished."""

    fault: str
    hit: str
    moment: float
    recovered: float | None = None


@dataclass
class Outcome:
    """What came of a round."""

    number: int
    start: str
    strikes: list[Strike] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    synced: bool = False
    seconds: float = 0.0
    leftovers: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def draw(seed: int, number: int, only: tuple[str, ...] = ()) -> Drawn:
    """A round's faults; a function of the seed, the round and the kinds alone."""
    rng = numpy_generator("faults", seed, number)
    tracking, disk = bool(rng.random() < 0.4), bool(rng.random() < 0.2)
    without = {need for need, there in (("tracking", tracking), ("disk", disk)) if not there}
    kinds = [f for name, f in FAULTS.items() if (not only or name in only) and f.needs not in without]
    weights = np.array([fault.weight for fault in kinds])
    count = int(rng.integers(5, 10))
    names = [kinds[int(i)].name for i in rng.choice(len(kinds), count, p=weights / weights.sum())]
    start = str(rng.choice(["empty", "half", "built"], p=[0.2, 0.5, 0.3]))
    # Faults of builders strike first, as there is nothing to build later on.
    names.sort(key=lambda name: FAULTS[name].needs != "build")
    # A quarter come before the first cell is finished, the others as the cells go by.
    after = sorted(int(a) for a in rng.integers(1, int(0.9 * CELLS), count) * (rng.random(count) > 0.25))
    return Drawn(
        start, tracking, disk, tuple(names), tuple(after), tuple(float(w) for w in rng.exponential(0.7, count))
    )


def prepare(world: World, drawn: Drawn, reference: Path, rng: np.random.Generator) -> None:
    """Fill the round's store as far as it was drawn."""
    if drawn.start == "empty":
        return
    copy_artifacts(reference, world.store)
    (world.store / "mlflow").mkdir()
    shutil.copyfile(reference.parent / "empty.db", world.store / "mlflow" / "mlflow.db")
    if drawn.start == "half":
        for kind in ARTIFACTS:
            for folder in sorted((world.store / kind).glob("*")):
                if rng.random() < 0.4:
                    shutil.rmtree(folder)


def strike_all(world: World, drawn: Drawn, rng: np.random.Generator, outcome: Outcome) -> None:
    """Let the round's faults strike, one after the other."""
    for name, after, wait in zip(drawn.faults, drawn.after, drawn.waits, strict=True):
        fault = FAULTS[name]
        if not _come_to(world, fault, after, wait):
            outcome.missed.append(name)
            continue
        if fault.needs == "rest":
            if world.running:
                note(outcome, FAULTS["kill_driver"], FAULTS["kill_driver"].strike(world, rng))
            world.collect_ended()
            if not world.at_rest():
                outcome.problems.append(f"workers of a killed command did not end in {REST_SECONDS:.0f} s")
        moment = time.time()
        note(outcome, fault, fault.strike(world, rng), moment)
        world.collect_ended()


def _come_to(world: World, fault: Fault, after: int, wait: float) -> bool:
    """Wait for the moment of a fault; ``False`` if it does not come."""
    if (fault.needs == "tracking" and world.server is None) or (fault.needs == "disk" and not world.disk):
        return False
    world.collect_ended()
    enough = world.finished() >= after
    if fault.needs == "rest" and enough and not world.running:
        return True  # the command before was killed as well, and nothing has happened since
    if not world.running and world.finished() < world.cells:
        world.start()

    def over() -> bool:
        return not world.running or (fault.needs == "build" and ready(world, "cell"))

    until(lambda: fault.needs == "build" or world.finished() >= after or over(), COMMAND_SECONDS)
    until(lambda: ready(world, fault.needs) or over(), WAIT_SECONDS)
    until(over, wait)
    if fault.needs == "rest":
        return True
    return until(lambda: ready(world, fault.needs) or over(), WAIT_SECONDS) and ready(world, fault.needs)


def note(outcome: Outcome, fault: Fault, hit: str | None, moment: float | None = None) -> None:
    """Note what a fault hit, if it hit anything."""
    if hit is None:
        outcome.missed.append(fault.name)
    else:
        outcome.strikes.append(Strike(fault.name, hit, moment or time.time()))


def judge(world: World, expected: dict[str, object], hits: list[str]) -> list[str]:
    """What is wrong with a round that was repeated to its end; nothing should be.

    ``hits`` is what each fault has hit.
    """
    problems = []
    found = scores(world.store)
    if missing := expected.keys() - found.keys():
        problems.append(f"{len(missing)} cells without a result, first {min(missing)}")
    if more := found.keys() - expected.keys():
        problems.append(f"{len(more)} results too many, first {min(more)}")
    if other := [cell for cell in found if cell in expected and found[cell] != expected[cell]]:
        problems.append(f"{len(other)} results differ from the run without faults, first {other[0]}")
    # What a fault has damaged and no open cell has needed since is still damaged; whatever needs it finds that out.
    damaged = {"/".join(hit.split("/")[:2]) for hit in hits}
    if unsound := [why for address, why in unsound_artifacts(world.store).items() if address not in damaged]:
        problems.append(f"{len(unsound)} artifacts are not what they say, first {unsound[0]}")
    if not until(lambda: not world.left(), 30):
        problems.append(f"processes are left: {world.left()[:3]}")
    kept = leftovers(world.store, world.scratch)
    if sum(kept.values()) > LEFT_BY_EACH * (len(world.ends) + len(hits)):
        problems.append(f"{len(world.ends)} commands and {len(hits)} faults have left too much behind: {kept}")
    if not world.tracks(expected):
        runs, wanted = world.runs(), {(cell, "FINISHED"): 1 for cell in expected}
        wrong = {key: runs.get(key, 0) for key in runs.keys() | wanted.keys() if runs.get(key, 0) != wanted.get(key, 0)}
        problems.append(f"MLflow has not one finished run per cell: {dict(list(wrong.items())[:3])}")
    if torn := [end.said for end in world.ends if "Traceback (most recent" in end.said]:
        problems.append(f"{len(torn)} commands showed a traceback: {torn[0][-600:]}")
    if failures := list((world.store / "failures").glob("[!.]*.json")):
        problems.append(f"{len(failures)} failures are on record, first {failures[0].name}")
    return problems


def recovery(strike: Strike, world: World, watch: Watch) -> float | None:
    """Seconds from a fault to the next finished cell; of the next command, where it ended the one under way."""
    if strike.fault not in KILLS:
        return None
    ending = strike.fault in ENDING or strike.hit.endswith("the command ended")
    starts = [driver.started for driver in world.begun if driver.started > strike.moment]
    since = min(starts, default=None) if ending else strike.moment
    seconds = watch.next_cell(since) if since is not None else None
    return None if seconds is None or since is None else since + seconds - strike.moment


def run_round(
    folder: Path,
    cluster: MultiNodeCluster,
    server: TrackingServer | None,
    seed: int,
    number: int,
    only: tuple[str, ...] = (),
) -> Outcome:
    """One round, from an empty or half-built store to its judgement.

    Without a server, or without the right to mount a disk, the faults of these are left out.
    """
    drawn, rng = draw(seed, number, only), numpy_generator("strikes", seed, number)
    outcome, begun = Outcome(number, drawn.start), time.monotonic()
    place = folder / f"round-{number}"
    shutil.rmtree(place, ignore_errors=True)
    disk = DISK_BYTES if drawn.disk and os.geteuid() == 0 else 0
    world = World(place, cluster, server if drawn.tracking else None, disk)
    reference = folder / "reference" / "store"
    expected = scores(reference)
    try:
        prepare(world, drawn, reference, rng)
        with Watch(world.store) as watch:
            strike_all(world, drawn, rng, outcome)
            world.finish(REPEATS, COMMAND_SECONDS)
            time.sleep(0.3)  # the watch sees the last result
        outcome.strikes = [replace(strike, recovered=recovery(strike, world, watch)) for strike in outcome.strikes]
        if world.server is not None and not world.tracks(expected):
            outcome.synced = True
            world.sync()
        outcome.problems += judge(world, expected, [strike.hit for strike in outcome.strikes])
    except (AssertionError, TimeoutError, RuntimeError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.problems.append(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    finally:
        world.close()
        outcome.leftovers = leftovers(world.store, world.scratch)
        world.unmount()
    outcome.codes = [end.code for end in world.ends]
    outcome.said = [last_words(end.said) for end in world.ends if end.code not in (0, -9)]
    outcome.seconds = time.monotonic() - begun
    if not outcome.problems:
        shutil.rmtree(place)
    return outcome


def last_words(said: str) -> str:
    """What a command said of its error, or the last that it said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")


def make_reference(folder: Path) -> None:
    """The run without faults, in one process without Ray, and an empty tracking database."""
    from orchestrator.tracking.client import open_client

    place = folder / "reference"
    if (place / "store" / "reports").exists():
        return
    cluster = MultiNodeCluster(folder / "none", workers=0)  # never started
    world = World(place, cluster)
    command = [*world.command("--local")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=world.environment)
    if done.returncode:
        raise RuntimeError(f"the run without faults fails: {done.stdout}{done.stderr}")
    open_client(f"sqlite:///{place}/empty.db")


def table(outcomes: list[Outcome]) -> str:
    """How often each fault struck, and seconds to the next finished cell: median and worst."""
    found: dict[str, list[Strike]] = defaultdict(list)
    for outcome in outcomes:
        for strike in outcome.strikes:
            found[strike.fault].append(strike)
    lines = [f"{'fault':22} {'struck':>6} {'median s':>9} {'worst s':>8}"]
    for name, strikes in sorted(found.items()):
        times = [strike.recovered for strike in strikes if strike.recovered is not None]
        said = f"{statistics.median(times):9.1f} {max(times):8.1f}" if times else f"{'-':>9} {'-':>8}"
        lines.append(f"{name:22} {len(strikes):6} {said}")
    return "\n".join(lines)


def main() -> int:
    """Run rounds until enough faults have struck; 1 when any round had a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=None, help="begin no round after so long")
    parser.add_argument("--round", type=int, default=None, help="this one alone")
    parser.add_argument("--kinds", default="", help="only these, e.g. kill_driver,truncate_result")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; kept, with the reference run in it")
    given = parser.parse_args()
    only = tuple(filter(None, given.kinds.split(",")))
    if unknown := set(only) - FAULTS.keys():
        parser.error(f"unknown faults {sorted(unknown)}; there are {', '.join(FAULTS)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))  # short: sockets lie in it
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # PostgreSQL is another user when this one is root
    print(f"in {folder}", flush=True)
    outcomes: list[Outcome] = []
    with ended_by_sigterm():
        make_reference(folder)
        begun = time.monotonic()
        with MultiNodeCluster(folder / "ray") as cluster, contextlib.ExitStack() as stack:
            if why := lacking(folder):
                print(f"no tracking server, and none of its faults: {why}")
            server = None if why else stack.enter_context(TrackingServer(folder / "tracking"))
            numbers = [given.round] if given.round is not None else range(10_000)
            for number in numbers:
                struck = sum(len(outcome.strikes) for outcome in outcomes)
                spent = time.monotonic() - begun
                if struck >= given.faults or (given.minutes and spent > 60 * given.minutes):
                    break
                cluster.mend()
                outcome = run_round(folder, cluster, server, given.seed, number, only)
                outcomes.append(outcome)
                print(progress(outcomes, given.faults, time.monotonic() - begun), flush=True)
                if outcome.problems:
                    print(f"  repeat it: python tests/faults/soak.py --seed {given.seed} --round {number}", flush=True)
    struck = sum(len(outcome.strikes) for outcome in outcomes)
    bad = [outcome.number for outcome in outcomes if outcome.problems]
    print(f"\n{table(outcomes)}\n\n{struck} faults in {len(outcomes)} rounds, {len(bad)} with a problem {bad}")
    (folder / "soak.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 1 if bad else 0


def progress(outcomes: list[Outcome], wanted: int, spent: float) -> str:
    """One line on the last round, with what is left."""
    last = outcomes[-1]
    struck = sum(len(outcome.strikes) for outcome in outcomes)
    left = spent / max(struck, 1) * max(wanted - struck, 0)
    names = ", ".join(strike.fault for strike in last.strikes)
    line = f"round {last.number} ({last.start}) {last.seconds:.0f} s: {names}; exit codes {last.codes}; "
    line += f"left {last.leftovers}"
    line += f"; {struck} of {wanted} faults, about {left / 60:.0f} min left"
    return "\n".join(
        [line, *(f"  it said: {said}" for said in last.said), *(f"  PROBLEM {problem}" for problem in last.problems)]
    )


if __name__ == "__main__":
    sys.exit(main())
