"""The arithmetic of the estimate, and how far off it is when a recorded run is played again.

``durations.csv`` is what the few-shot cells of the drawn world took on one processor, in running order: the method, k,
dataset and seed of each, the 10^9 operations that the plan counts for it, and its seconds.
"""

from __future__ import annotations

import csv
import heapq
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent
from orchestrator.progress.eta import Durations, Expected, Job, Kind, Waiting, eta, kind_of, rest, schedule
from orchestrator.progress.progress import Progress
from orchestrator.util.units import human_duration
from tests.helpers import cells as samples

BOLT = Kind("fewshot", "tiny", "bolt", 4)
LORA = Kind("fewshot", "tiny", "lora", 4)
PROBE = Kind("fewshot", "tiny", "linear_probe", 4)


def measured(*done: tuple[Kind, float, float]) -> Durations:
    durations = Durations(gflops=2.0)
    for kind, size, seconds in done:
        durations.add(Job(kind, size), seconds)
    return durations


def waiting(*jobs: Job) -> Waiting:
    return Waiting({str(number): job for number, job in enumerate(jobs)})


def test_a_duration_grows_with_the_size_within_its_kind() -> None:
    durations = measured((BOLT, 10, 1.0), (BOLT, 30, 3.0), (PROBE, 0, 0.1), (PROBE, 0, 0.3))
    assert durations.expected(Job(BOLT, 200)) == Expected(20.0, True)
    assert durations.expected(Job(PROBE, 0)).seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (Job(BOLT, 10), 1.0),
        (Job(BOLT._replace(shots=2), 10), 2.0),  # k = 1 is nearer to 2 than 4 is, as ratios go
        (Job(BOLT._replace(shots=16), 10), 1.0),  # k = 4 is the nearest
        (Job(BOLT._replace(track="ood"), 10), 1.0),  # the same method at the same k on another track
        (Job(BOLT._replace(backbone="large", shots=4), 100), 10.0),  # on another backbone, by operations
        (Job(LORA, 12), 1.2),  # another method on this backbone, at this k
        (Job(PROBE._replace(method="tip_adapter"), 0), 0.5),  # one that reads features is like others that do
    ],
)
def test_what_was_never_measured_borrows_from_its_nearest_relative(job: Job, seconds: float) -> None:
    durations = measured((BOLT, 10, 1.0), (BOLT._replace(shots=1), 5, 1.0), (PROBE, 0, 0.5))
    found = durations.expected(job)
    assert found.measured
    assert found.seconds == pytest.approx(seconds)


def test_before_anything_was_measured_the_plans_operations_count() -> None:
    assert Durations(gflops=20.0).expected(Job(BOLT, 100)) == Expected(5.0, False)
    assert measured((PROBE, 0, 9.0)).expected(Job(BOLT, 100)) == Expected(
        50.0, False
    )  # features tell nothing of towers


def test_what_was_measured_long_ago_fades() -> None:
    """Earlier results may be of another machine; this run's own soon outweigh them."""
    durations = measured(*[(BOLT, 10, 100.0)] * 200, *[(BOLT, 10, 1.0)] * 60)
    assert durations.expected(Job(BOLT, 10)).seconds < 10


def test_jobs_take_the_first_place_that_becomes_free() -> None:
    assert schedule([], [], places=2) == 0.0
    assert schedule([], [3.0, 2.0, 2.0], places=2) == 4.0
    assert schedule([5.0, 1.0], [1.0, 1.0], places=2) == 5.0
    assert schedule([], [1.0, 1.0, 1.0, 9.0], places=4) == 9.0  # a long one at the end is not shared out
    assert schedule([2.0, 2.0, 2.0], [1.0], places=1) == 3.0  # more under way than was said would fit


@given(st.lists(st.floats(0.01, 100), max_size=60), st.integers(1, 9))
def test_a_schedule_lies_between_its_bounds(lengths: list[float], places: int) -> None:
    least = max(sum(lengths) / places, max(lengths, default=0.0))
    most = sum(lengths) / places + max(lengths, default=0.0)
    assert least * (1 - 1e-9) <= schedule([], lengths, places) <= most * (1 + 1e-9)


@given(st.lists(st.floats(0, 100), max_size=12), st.lists(st.floats(0.01, 3), max_size=300), st.integers(1, 9))
def test_work_that_is_poured_out_ends_when_single_jobs_would(
    rests: list[float], lengths: list[float], places: int
) -> None:
    poured = schedule(rests, lengths[200:], places, before=sum(lengths[:200]))
    assert poured == pytest.approx(schedule(rests, lengths, places), abs=2 * max(lengths, default=0.0))


def test_many_waiting_jobs_are_reckoned_without_going_through_them() -> None:
    durations = measured((BOLT, 10, 1.0), (BOLT._replace(shots=1), 5, 1.0), (PROBE, 0, 0.5))
    jobs = [Job((BOLT, LORA, PROBE)[number % 3], (0 if number % 3 == 2 else 1 + number % 7)) for number in range(5000)]
    many = waiting(*jobs)
    for number in range(1000):
        many.begin(str(number))
    many.begin("0")  # tried again: it has begun before
    each = [durations.expected(job) for job in jobs[1000:]]
    assert len(many) == 4000
    assert many.seconds(durations) == pytest.approx((sum(one.seconds for one in each),) * 2)
    exact = schedule([], [one.seconds for one in each], places=3)
    assert eta(many, [], durations, places=3).seconds == pytest.approx(exact, abs=1.0)


@given(st.floats(0.1, 1e4), st.floats(0, 1e5))
def test_a_cell_under_way_always_needs_something_more(expected: float, age: float) -> None:
    assert rest(expected, age) > 0
    if age < 0.9 * expected:
        assert rest(expected, age) == expected - age


def test_a_cell_under_way_counts_by_its_age_or_by_what_its_builder_says() -> None:
    durations = measured((BOLT, 10, 100.0))
    now = [
        eta(Waiting({}), [(Job(BOLT, 10), age, None)], durations, places=1).seconds for age in (0.0, 30.0, 60.0, 90.0)
    ]
    assert now == [100.0, 70.0, 40.0, 10.0]
    assert eta(Waiting({}), [(Job(BOLT, 10), 30.0, 0.75)], durations, places=1).seconds == pytest.approx(10.0)


def test_the_share_that_is_measured_is_told() -> None:
    durations = measured((BOLT, 10, 2.0))
    assert eta(waiting(Job(BOLT, 10), Job(PROBE, 0)), [], durations, places=1).measured == 1.0
    assert eta(waiting(Job(BOLT, 10)), [], Durations(), places=1).measured == 0.0
    assert eta(Waiting({}), [], Durations(), places=1).seconds == 0.0


def test_time_lost_between_cells_stretches_the_estimate() -> None:
    durations = measured((BOLT, 10, 2.0))
    assert eta(waiting(*[Job(BOLT, 10)] * 10), [], durations, places=2, drag=1.5).seconds == pytest.approx(15.0)


# -- a recorded run, played again --------------------------------------------------------------------------------------


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
        return [
            (
                samples.cell(number, method=row["method"], dataset=row["dataset"], shots=int(row["shots"])),
                float(row["gflop"]),
                float(row["seconds"]),
            )
            for number, row in enumerate(csv.DictReader(stream))
        ]


def play(places: int, slower: Callable[[float], float] = lambda share: 1.0, lost: float = 0.0) -> Played:
    """Play the recorded cells in their order at so many places, without waiting.

    Args:
        places: how many cells are under way at a time.
        slower: factor on a cell's seconds, by the share of cells that were started before it.
        lost: seconds between two cells at one place.
    """
    rows = recorded()
    sizes = {cell.id: size for cell, size, _ in rows}
    now = 0.0
    progress = Progress(
        [cell for cell, _, _ in rows],
        size_of=lambda cell: sizes[cell.id],
        places=places,
        console=Console(file=io.StringIO(), force_terminal=False),
        clock=lambda: now,
    )
    under_way: list[tuple[float, int, float]] = []
    said: list[tuple[float, float]] = []
    for number, (cell, _, seconds) in enumerate(rows):
        took = seconds * slower(number / len(rows))
        heapq.heappush(under_way, (now + lost + took, number, took))
        progress.on_event(CellEvent(cell, "started"))
        while len(under_way) == places or (number == len(rows) - 1 and under_way):
            now, ended, length = heapq.heappop(under_way)
            progress.on_event(CellEvent(rows[ended][0], "finished", seconds=length))
            said.append((now, progress.snapshot().eta))
    return Played(now, tuple((at / now, (left - (now - at)) / now) for at, left in said))


@pytest.mark.parametrize("places", [1, 2, 4, 16])
def test_the_estimate_of_a_recorded_run_is_soon_right(places: int) -> None:
    played = play(places)
    assert played.worst(after=0.1) < 0.1
    assert played.worst(after=0.25) < 0.03
    assert played.worst(after=0.9) < 0.02


def test_time_lost_between_cells_is_noticed() -> None:
    without, played = play(4), play(4, lost=1.0)
    assert played.took > 1.3 * without.took
    assert played.worst(after=0.1) < 0.1


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    played = play(4, slower=lambda share: 1.0 if share < 0.4 else 2.0)
    assert played.worst(after=0.7) < 0.1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3570.0, "1 h 00 min"),
        (11100.0, "3 h 05 min"),
        (187200.0, "2 d 4 h"),
    ],
)
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert human_duration(seconds) == words


def test_kinds_tell_track_backbone_method_and_shots_apart() -> None:
    cell = samples.cell(3, method="lora", shots=16, backbone="ViT-B-32")
    assert kind_of(cell) == ("fewshot", "ViT-B-32", "lora", 16)
