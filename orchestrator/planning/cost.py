"""The cost of a cell: its counted operations, and its seconds and accelerator memory learned from finished cells.

The seconds and memory of a new cell are predicted from similar cells. The groups of similar cells, nearest first:

1. the same cell with another seed,
2. the same method and settings in the same domain, on another dataset or at another k,
3. the same method on the same track and backbone,
4. the same method on the same backbone,
5. the same method,
6. any method on the same backbone,
7. any cell.

Memory is predicted from groups 1 to 3. Cells of another track, backbone or method say too little about memory, and a
cell fails if its share of a GPU is too small. Seconds are predicted from groups 3 to 7. Within a group, they are scaled
by the counted operations, so a small dataset predicts a large one. In every group, the cells at the nearest k are used.
If no group has a measurement, the prediction is ``None``. The caller then prints and uses an assumption.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from orchestrator.artifacts.required import configured_method
from orchestrator.catalog import Catalog
from orchestrator.catalog.text_sizes import text_sizes
from orchestrator.core.cell import Cell
from orchestrator.core.gpu_memory import RESERVED_MEMORY
from orchestrator.store.results import Result
from orchestrator.tracks import TRACKS

WINDOW = 20
"""The mean duration of a group is over about this many of its last measurements. Older measurements fade, because
machines change."""

T = TypeVar("T")


class Work(NamedTuple):
    """A piece of work whose duration the model learns or predicts.

    Attributes:
        groups: keys of the groups of similar work, the narrowest group first.
        shots: k of a cell; 0 for other work.
        gflop: number of operations, in units of 10^9; 0 if they are not counted, because the work hardly runs a tower.
            Work without a count is never compared with work that has one.
    """

    groups: tuple[Hashable, ...]
    shots: int
    gflop: float


def artifact_work(address: str, gflop: float) -> Work:
    """Return the work of building an artifact.

    The time is predicted from artifacts of the same kind or, if none was measured, from artifacts of any kind.
    """
    return Work((("artifact", address.partition("/")[0], gflop > 0), ("artifacts", gflop > 0)), 0, gflop)


@dataclass
class _RecentMean:
    """A running mean of the durations of a group of similar work."""

    count: float = 0.0
    seconds: float = 0.0
    gflop: float = 0.0

    def add(self, seconds: float, gflop: float) -> None:
        """Add a measurement; older ones weigh less."""
        kept = min(1.0, (WINDOW - 1) / self.count) if self.count else 1.0
        self.count = kept * self.count + 1
        self.seconds = kept * self.seconds + seconds
        self.gflop = kept * self.gflop + gflop

    def scaled_to(self, gflop: float) -> float:
        """Return the mean duration in seconds. If operations are counted, it is scaled to the size ``gflop``."""
        return self.seconds * gflop / self.gflop if gflop and self.gflop else self.seconds / self.count


class CostModel:
    """Predicts seconds and accelerator memory from finished cells. Its methods may be called from any thread.

    ``gflops_of`` returns the number of operations of a cell, in units of 10^9; 0 for a cell that only reads cached
    features.
    """

    def __init__(self, gflops_of: Callable[[Cell], float] = lambda cell: 0.0, done: Iterable[Result] = ()) -> None:
        self.gflops_of = gflops_of
        self._lock = threading.Lock()
        self._seconds: dict[Hashable, dict[int, _RecentMean]] = defaultdict(lambda: defaultdict(_RecentMean))
        self._memory: dict[Hashable, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for result in done:
            self.learn(self.work(result.cell), result.timings.total)
            self.learn_memory(result.cell, held_mib(result))

    def work(self, cell: Cell) -> Work:
        """Return the work of a cell: the groups of similar cells that it belongs to, its k and its operations."""
        gflop = self.gflops_of(cell)
        return Work(_time_groups(cell.track, cell.backbone.name, cell.method.name, gflop > 0), cell.shots, gflop)

    def learn(self, work: Work, seconds: float) -> None:
        """Learn the duration of a finished piece of work."""
        with self._lock:
            for group in work.groups:
                self._seconds[group][work.shots].add(seconds, work.gflop)

    def learn_memory(self, cell: Cell, mebibytes: float) -> None:
        """Learn a finished cell's peak of accelerator memory. The 0 of a cell on a CPU is ignored."""
        if mebibytes <= 0:
            return
        with self._lock:
            for group in _memory_groups(cell):
                self._memory[group][cell.shots] = max(mebibytes, self._memory[group][cell.shots])

    def predict(self, work: Work) -> float | None:
        """Return the predicted seconds of a piece of work, from its nearest measured group; ``None`` without one."""
        with self._lock:
            mean = _nearest(self._seconds, work.groups, work.shots)
            return mean.scaled_to(work.gflop) if mean else None

    def memory_mib(self, cell: Cell) -> float | None:
        """Return the predicted accelerator memory of a cell in MiB: the largest peak that similar cells had.

        The similar cells are those at the nearest k in the nearest group that has a measurement. ``None`` if
        groups 1 to 3 at the top of this file have no measurement.
        """
        with self._lock:
            return _nearest(self._memory, _memory_groups(cell), cell.shots)


def cell_gflops(cell: Cell, catalog: Catalog) -> float:
    """Return how many operations a cell takes in both towers, training included, in units of 10^9.

    The number is 0 for a cell that only reads cached features.
    """
    method, settings = configured_method(cell)
    backbone = catalog.backbone(cell.backbone.name)
    entry = catalog.dataset(cell.dataset.name)
    track = TRACKS[cell.track]
    classes = track.base_classes(entry.classes) if track.base_classes else entry.classes  # those that it adapts to
    work = track.tower_passes(method, settings, cell.shots * classes, entry.sizes.test)
    images = work.forward + method.training_forwards * work.training
    if method.changes_tower:  # the test images pass through the changed tower, for which no features are cached
        scorings = 1 + getattr(settings, "epochs", 0) * track.scored_after_epochs
        images += scorings * sum(catalog.dataset(ref.name).sizes.test for ref in cell.evaluate_on)
    prompts = method.training_forwards * work.text_training * classes
    text = prompts * text_sizes(backbone).gflops_per_prompt if prompts else 0.0
    return images * backbone.gflops_per_image + text


def same_but_seed(cell: Cell) -> Hashable:
    """Return a key that is equal for cells that differ only in the seed: group 1 at the top of this file."""
    return cell.backbone.name, cell.track, cell.method, cell.domain, cell.dataset.name, cell.shots


def _memory_groups(cell: Cell) -> tuple[Hashable, ...]:
    """Return the keys of the groups that a cell's memory is predicted from: groups 1 to 3 at the top of this file."""
    shared = cell.backbone.name, cell.track
    return same_but_seed(cell), (*shared, cell.method, cell.domain), (*shared, cell.method.name)


@lru_cache(maxsize=4096)
def _time_groups(track: str, backbone: str, method: str, counts_operations: bool) -> tuple[Hashable, ...]:
    """Return the keys of the groups that a cell's time is predicted from: groups 3 to 7 at the top of this file."""
    groups = [
        ("track, backbone, method", track, backbone, method),
        ("backbone, method", backbone, method),
        ("method", method),
        ("backbone", backbone),
        ("cells",),
    ]
    return tuple((*group, counts_operations) for group in groups)


def _nearest(table: Mapping[Hashable, Mapping[int, T]], groups: Iterable[Hashable], shots: int) -> T | None:
    """Return the measurement of the first measured group, at the k nearest to ``shots``; ``None`` if none is measured.

    How near a k is depends on its ratio to ``shots``: if ``shots`` is 4, k = 8 is nearer than k = 1. Of two equally
    near k, the larger one is taken.
    """
    for group in groups if table else ():  # hashing the groups takes long
        if by_shots := table.get(group):
            return by_shots[min(by_shots, key=lambda k: (abs(math.log2((k + 1) / (shots + 1))), -k))]
    return None


def held_mib(result: Result) -> float:
    """Return the peak of accelerator memory, in MiB, that torch reported for a finished cell; 0 for a cell on a CPU."""
    if result.manifest.device.startswith(("cpu", "none")):
        return 0.0
    return float(result.details.get(RESERVED_MEMORY, result.peak_memory_mib))
