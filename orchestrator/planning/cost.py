"""What a cell takes: its counted operations, and its seconds and accelerator memory learned from finished cells.

The cost of a cell that was never measured is predicted from similar cells. The groups of similar cells, nearest first:

1. the same cell with another seed,
2. the same method and settings in the same domain, on another dataset or at another k,
3. the same method on the same track and backbone,
4. the same method on the same backbone,
5. the same method,
6. any method on the same backbone,
7. any cell.

Memory uses groups 1 to 3: another track, backbone or method says too little, and a cell whose share of a GPU is too
small fails. Seconds use groups 3 to 7: within a group they grow with the operations that a cell counts, so a large
dataset is not judged by a small one. In every group the cells at the nearest k count. Where no group has a measurement,
the model answers ``None``; the caller then assumes something, and says so.
"""

from __future__ import annotations

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
"""The mean duration of a group follows about this many of the last measurements, as machines change."""

T = TypeVar("T")


class Work(NamedTuple):
    """A piece of work whose duration the model learns or predicts.

    Attributes:
        groups: of similar work, the narrowest first.
        shots: k of a cell, 0 for other work.
        gflop: 10^9 operations, 0 where next to none are counted. Work with and without operations is never compared.
    """

    groups: tuple[Hashable, ...]
    shots: int
    gflop: float


def artifact_work(address: str, gflop: float) -> Work:
    """Return the work of building an artifact: like that of its kind, else like that of any artifact."""
    return Work((("artifact", address.partition("/")[0], gflop > 0), ("artifacts", gflop > 0)), 0, gflop)


@dataclass
class _RecentMean:
    """Mean duration of the last measurements of a group."""

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
        """Return the mean in seconds, in proportion to the operations where there are any."""
        return self.seconds * gflop / self.gflop if gflop and self.gflop else self.seconds / self.count


class CostModel:
    """Predicts seconds and accelerator memory from what was measured. Its methods may be called from any thread.

    ``gflops_of`` gives the 10^9 operations of a cell, 0 for a cell that only reads cached features.
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
        """Return what decides how long a cell takes: its groups of similar cells, its k and its operations."""
        gflop = self.gflops_of(cell)
        return Work(_time_groups(cell.track, cell.backbone.name, cell.method.name, gflop > 0), cell.shots, gflop)

    def learn(self, work: Work, seconds: float) -> None:
        """Learn how long a finished piece of work took."""
        with self._lock:
            for group in work.groups:
                self._seconds[group][work.shots].add(seconds, work.gflop)

    def learn_memory(self, cell: Cell, mebibytes: float) -> None:
        """Learn how much of an accelerator's memory a finished cell took at most; 0 for a cell on a CPU is ignored."""
        if mebibytes <= 0:
            return
        with self._lock:
            for group in _memory_groups(cell):
                self._memory[group][cell.shots] = max(mebibytes, self._memory[group][cell.shots])

    def predict(self, work: Work) -> float | None:
        """Seconds that a piece of work takes, by the mean of the nearest group; ``None`` without a measurement."""
        with self._lock:
            mean = _nearest(self._seconds, work.groups, work.shots)
            return mean.scaled_to(work.gflop) if mean else None

    def memory_mib(self, cell: Cell) -> float | None:
        """MiB of an accelerator that a cell takes: the most that a cell of the nearest group took, else ``None``."""
        with self._lock:
            return _nearest(self._memory, _memory_groups(cell), cell.shots)


def cell_gflops(cell: Cell, catalog: Catalog) -> float:
    """10^9 operations of a cell in both towers, training included; 0 for a cell that only reads cached features."""
    method, settings = configured_method(cell)
    backbone = catalog.backbone(cell.backbone.name)
    entry = catalog.dataset(cell.dataset.name)
    work = TRACKS[cell.track].tower_passes(method, settings, cell.shots * entry.classes, entry.sizes.test)
    images = work.forward + method.training_forwards * work.training
    if method.changes_tower:  # the test images pass through the cell's own tower
        scorings = 1 + getattr(settings, "epochs", 0) * TRACKS[cell.track].scored_after_epochs
        images += scorings * sum(catalog.dataset(ref.name).sizes.test for ref in cell.evaluate_on)
    prompts = method.training_forwards * work.text_training * entry.classes
    text = prompts * text_sizes(backbone).gflops_per_prompt if prompts else 0.0
    return images * backbone.gflops_per_image + text


def same_but_seed(cell: Cell) -> Hashable:
    """Equal for cells that differ in their seed alone (group 1)."""
    return cell.backbone.name, cell.track, cell.method, cell.domain, cell.dataset.name, cell.shots


def _memory_groups(cell: Cell) -> tuple[Hashable, ...]:
    """Return groups 1 to 3."""
    shared = cell.backbone.name, cell.track
    return same_but_seed(cell), (*shared, cell.method, cell.domain), (*shared, cell.method.name)


@lru_cache(maxsize=4096)
def _time_groups(track: str, backbone: str, method: str, counts_operations: bool) -> tuple[Hashable, ...]:
    """Return groups 3 to 7."""
    groups = [
        ("track, backbone, method", track, backbone, method),
        ("backbone, method", backbone, method),
        ("method", method),
        ("backbone", backbone),
        ("cells",),
    ]
    return tuple((*group, counts_operations) for group in groups)


def _nearest(table: Mapping[Hashable, Mapping[int, T]], groups: Iterable[Hashable], shots: int) -> T | None:
    """Return the measurement of the first group that has one, at the nearest k by ratio; ties go to the larger k."""
    for group in groups:
        if by_shots := table.get(group):
            return by_shots[min(by_shots, key=lambda k: (abs(math.log2((k + 1) / (shots + 1))), -k))]
    return None


def held_mib(result: Result) -> float:
    """Return the MiB of its accelerator that a finished cell held, by torch's account; 0 for one on a CPU."""
    if result.manifest.device.startswith(("cpu", "none")):
        return 0.0
    return float(result.details.get(RESERVED_MEMORY, result.peak_memory_mib))
