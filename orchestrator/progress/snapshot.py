"""The progress of a run at one moment, as plain data. The terminal shows it and the status file holds it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.util.machine import Gpu, Memory
from orchestrator.util.units import human_duration, pluralize

MEASURED_SHARE = 0.5
"""The estimate is shown when at least this share of it rests on measurements."""


@dataclass(frozen=True)
class Stage:
    """Counts of the artifacts of one kind. ``failed`` includes those that were skipped because an input failed."""

    name: str
    built: int
    failed: int
    total: int


@dataclass(frozen=True)
class InProgress:
    """A cell that is running, or an artifact that is being built.

    Attributes:
        seconds: time since it started.
        expected: predicted duration in seconds; ``None`` where nothing similar was measured.
        told: progress that the artifact's builder reports, such as ``3 of 8``; empty without a report.
    """

    name: str
    seconds: float
    expected: float | None = None
    told: str = ""


@dataclass(frozen=True)
class Failed:
    """A cell or an artifact that has failed, with one line of its error and the path of its log."""

    name: str
    error: str
    log: str


@dataclass(frozen=True)
class Snapshot:
    """The progress of a run.

    Attributes:
        elapsed: seconds since the run started.
        stages: counts of artifacts by kind, in the order they are built.
        before: cells that were finished before this run.
        finished, failed, waiting: counts of cells of this run.
        running: cells that are running, the one that started first in front.
        rate: cells that ended per second over the last minutes.
        eta: estimated seconds until everything is done, artifacts included.
        measured: the share of the estimate that rests on measurements, 0 to 1: of artifacts or of cells, whichever is
            less.
        memory, gpus: of the driver's machine.
        phase: what the run waits for while nothing has ended yet, such as ``starting Ray workers``; empty otherwise.
        race: what a race has decided so far, in one line; empty without one. What it has not asked for is not counted.
    """

    elapsed: float = 0.0
    stages: tuple[Stage, ...] = ()
    building: tuple[InProgress, ...] = ()
    before: int = 0
    finished: int = 0
    failed: int = 0
    waiting: int = 0
    running: tuple[InProgress, ...] = ()
    rate: float = 0.0
    eta: float = 0.0
    measured: float = 1.0
    failures: tuple[Failed, ...] = ()
    memory: Memory | None = None
    gpus: tuple[Gpu, ...] = ()
    phase: str = ""
    race: str = ""

    @property
    def total(self) -> int:
        """Cells of the grid, without those with a recorded failure that do not run again."""
        return self.before + self.finished + self.failed + len(self.running) + self.waiting

    @property
    def done(self) -> int:
        """Finished cells, including those of earlier runs."""
        return self.before + self.finished

    @property
    def built(self) -> int:
        """Artifacts this run has built."""
        return sum(stage.built for stage in self.stages)

    @property
    def artifacts(self) -> int:
        """Artifacts this run has to build, including those it has built."""
        return sum(stage.total for stage in self.stages)

    @property
    def left(self) -> bool:
        """Whether any cell or artifact is not done yet."""
        ended = self.built + sum(stage.failed for stage in self.stages)
        return ended < self.artifacts or bool(self.running) or self.waiting > 0

    @property
    def rate_text(self) -> str:
        """The rate as text: cells per minute, or per second where it is high."""
        return f"{self.rate:.1f} cells/s" if self.rate >= 2 else f"{60 * self.rate:.1f} cells/min"

    @property
    def has_estimate(self) -> bool:
        """Whether measurements support the estimate. An assumed speed can be wrong by a factor of ten."""
        return self.left and self.measured >= MEASURED_SHARE

    @property
    def eta_text(self) -> str:
        """The remaining time as text, or why it is not known yet."""
        return f"about {human_duration(self.eta)} left" if self.has_estimate else "too little measured for an estimate"

    @property
    def line(self) -> str:
        """The snapshot in one line, for logs."""
        parts = []
        if any(stage.built + stage.failed < stage.total for stage in self.stages):
            parts.append(f"artifacts {self.built}/{self.artifacts}")
            parts += [f"{one.name}: {one.told}" for one in self.building if one.told][:1]
        parts.append(f"cells {self.done}/{self.total}: {len(self.running)} running, {self.waiting} waiting")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.left:
            parts += [self.rate_text] if self.rate else []
            parts.append(self.phase or self.eta_text)
        return ", ".join([*parts, self.race] if self.race else parts)

    @property
    def summary(self) -> str:
        """What the run has done, in one line, for its end."""
        parts = [f"{self.built} of {self.artifacts} artifacts built"] if self.artifacts else []
        parts.append(f"{pluralize(self.finished, 'cell')} finished")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if left := len(self.running) + self.waiting:
            parts.append(f"{left} not done")
        return f"{', '.join(parts)} in {human_duration(self.elapsed)}"
