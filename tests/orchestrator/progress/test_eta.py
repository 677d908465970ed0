"""The arithmetic of the estimate, and how far off it is when a recorded run is played again.

``durations.csv`` is what the few-shot cells of the drawn world took on one processor, in running order: the method, k,
dataset and seed of each, the operations that the plan counts for it (in units of 10^9), and its seconds.
"""

import csv
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent
from orchestrator.planning.cost import CostModel, Work
from orchestrator.progress.counter import Prediction, ProgressCounter, eta, remaining, slowdown
from tests.helpers import cells as samples
from tests.orchestrator.planning.test_cost import BOLT, PROBE, measured, work

SPEED = 2.0
"""The speed that the tests assume for work unlike anything measured, in 10^9 operations a second."""


def predictions(costs: CostModel) -> Callable[[Work], Prediction]:
    def predict(one: Work) -> Prediction:
        seconds = costs.predict(one)
        return Prediction(one.gflop / SPEED, 0.0) if seconds is None else Prediction(seconds, 1.0)

    return predict


def schedule(running: list[float], waiting: list[float], slots: int) -> float:
    """Seconds until work of these durations ends."""
    left, still = ([Prediction(seconds, 1.0) for seconds in each] for each in (waiting, running))
    return eta(left, still, slots=slots).seconds


def test_work_takes_the_first_slot_that_becomes_free() -> None:
    assert schedule([], [], slots=2) == 0.0
    assert schedule([], [3.0, 2.0, 2.0], slots=2) == 4.0
    assert schedule([5.0, 1.0], [1.0, 1.0], slots=2) == 5.0
    assert schedule([], [1.0, 1.0, 1.0, 9.0], slots=4) == 9.0  # a long one at the end is not divided
    assert schedule([2.0, 2.0, 2.0], [1.0], slots=1) == 3.0  # more is running than there are slots


@given(st.lists(st.floats(0.01, 100), max_size=60), st.integers(1, 9))
def test_a_schedule_lies_between_its_bounds(lengths: list[float], slots: int) -> None:
    least = max(sum(lengths) / slots, max(lengths, default=0.0))
    most = sum(lengths) / slots + max(lengths, default=0.0)
    assert least * (1 - 1e-9) <= schedule([], lengths, slots) <= most * (1 + 1e-9)


@given(st.floats(0.1, 1e4), st.floats(0, 1e5))
def test_a_running_cell_always_needs_some_more_time(predicted: float, age: float) -> None:
    left = remaining(Prediction(predicted, 1.0), age).seconds
    assert left > 0
    if age < 0.9 * predicted:
        assert left == predicted - age


def test_running_work_counts_by_its_age_or_by_what_its_builder_reports() -> None:
    whole = Prediction(100.0, 1.0)
    assert [remaining(whole, age).seconds for age in (0.0, 30.0, 60.0, 90.0)] == [100.0, 70.0, 40.0, 10.0]
    assert remaining(whole, 30.0, 0.75) == (pytest.approx(10.0), 1.0)
    assert eta([], [remaining(whole, 30.0)], slots=1).seconds == 70.0
    late = Prediction(10.0, 1.0)  # needs half of that time again
    assert (remaining(late, 12.5), remaining(late, 210.0)) == (Prediction(1.25, 1.0), Prediction(100.0, 1.0))


def test_what_waits_takes_longer_by_the_factor_that_running_work_shows() -> None:
    """Four cells were to take 10 s and ran for 200 s on a GPU; the estimate was 40 s all the time."""
    costs = CostModel(lambda cell: 10.0)
    first, *others = [samples.cell(seed) for seed in range(9)]
    now = 0.0
    progress = ProgressCounter([first, *others], costs=costs, slots=4, clock=lambda: now)
    progress.on_event(CellEvent(first, "started"))
    now = 10.0
    progress.on_event(CellEvent(first, "finished", seconds=10.0))
    for cell in others[:4]:
        progress.on_event(CellEvent(cell, "started"))
    assert progress.snapshot().has_estimate
    now = 210.0
    late = progress.snapshot()
    assert late.eta == pytest.approx(95 + 10 * 810 / 50)
    assert late.has_estimate
    assert slowdown(100.0, [(5.0, 10.0), (30.0, 10.0), (1.0, 0.0)]) == 140 / 120
    assert slowdown(0.0, []) == 1.0


def test_before_anything_was_measured_operations_at_the_assumed_speed_count() -> None:
    assert eta([predictions(CostModel())(work(BOLT, 100))], [], slots=1) == Prediction(50.0, 0.0)
    probed = predictions(measured((PROBE, 0, 9.0)))  # cached features say nothing about towers
    assert eta([probed(work(BOLT, 100))], [], slots=1) == Prediction(50.0, 0.0)


def test_an_estimate_tells_which_share_of_it_is_measured() -> None:
    learned, fresh = (
        [predictions(costs)(one) for one in (work(BOLT, 10), work(PROBE, 0))]
        for costs in (measured((BOLT, 10, 2.0)), CostModel())
    )
    assert eta(learned, [], slots=1).measured == 1.0
    assert eta(fresh, [], slots=1).measured == 0.0
    assert eta([], [], slots=1).seconds == 0.0


@dataclass(frozen=True)
class Played:
    """How far off the estimate was.

    Attributes:
        took: seconds of the whole run.
        errors: after each cell: the share of the run that was over, and estimate minus truth as a share of the run.
    """

    took: float
    errors: tuple[tuple[float, float], ...]

    def worst(self, after: float) -> float:
        """The largest error from that share of the run on."""
        return max(abs(error) for share, error in self.errors if share >= after)


def recorded() -> list[tuple[Cell, float, float]]:
    """Every cell with its size and seconds; the row's number stands for the seed, since settings are not recorded."""
    with open(Path(__file__).with_name("durations.csv")) as stream:
        rows = list(csv.DictReader(stream))
    cells = (
        samples.cell(number, method=row["method"], dataset=row["dataset"], shots=int(row["shots"]))
        for number, row in enumerate(rows)
    )
    return [(cell, float(row["gflop"]), float(row["seconds"])) for cell, row in zip(cells, rows, strict=True)]


@cache
def play(slots: int, slower: Callable[[float], float] = lambda share: 1.0, lost: float = 0.0) -> Played:
    """Play the recorded cells in their order on so many slots, without waiting.

    Args:
        slots: how many cells run at a time.
        slower: factor on a cell's seconds, by the share of cells that were started before it.
        lost: seconds between two cells on one slot.
    """
    rows = recorded()
    sizes = {cell.id: size for cell, size, _ in rows}
    now = 0.0
    progress = ProgressCounter(
        [cell for cell, _, _ in rows], costs=CostModel(lambda cell: sizes[cell.id]), slots=slots, clock=lambda: now
    )
    running: list[tuple[float, int, float]] = []
    estimates: list[tuple[float, float]] = []
    for number, (cell, _, seconds) in enumerate(rows):
        took = seconds * slower(number / len(rows))
        heapq.heappush(running, (now + lost + took, number, took))
        progress.on_event(CellEvent(cell, "started"))
        while len(running) == slots or (number == len(rows) - 1 and running):
            now, ended, length = heapq.heappop(running)
            progress.on_event(CellEvent(rows[ended][0], "finished", seconds=length))
            estimates.append((now, progress.snapshot().eta))
    return Played(now, tuple((at / now, (left - (now - at)) / now) for at, left in estimates))


@pytest.mark.parametrize("slots", [1, 16])
def test_the_estimate_of_a_recorded_run_is_soon_right(slots: int) -> None:
    played = play(slots)
    assert played.worst(after=0.1) < 0.1
    assert played.worst(after=0.25) < 0.03
    assert played.worst(after=0.9) < 0.02


@pytest.mark.slow
def test_time_lost_between_cells_is_noticed() -> None:
    without, played = play(4), play(4, lost=1.0)
    assert played.took > 1.3 * without.took
    assert played.worst(after=0.1) < 0.1


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    played = play(4, slower=lambda share: 1.0 if share < 0.4 else 2.0)
    assert played.worst(after=0.7) < 0.1
