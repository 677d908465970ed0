"""The progress of a run at one moment, as plain data for the terminal and for the status file."""

from dataclasses import dataclass

from orchestrator.util.machine import Gpu, Memory
from orchestrator.util.units import human_duration, pluralize

MEASURED_SHARE = 0.5
"""The remaining time is shown if at least this share of it was estimated from measurements."""


@dataclass(frozen=True)
class Stage:
    """Counts of the artifacts of one kind. ``failed`` includes artifacts that were skipped because an input failed."""

    name: str
    built: int
    failed: int
    total: int


@dataclass(frozen=True)
class InProgress:
    """A cell that is running, or an artifact that is being built.

    Attributes:
        seconds: time since the start.
        expected: predicted duration in seconds; ``None`` if no similar cell or artifact was measured.
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
        stages: counts of artifacts by kind, in the order in which the kinds are built.
        building: artifacts that are being built.
        before: number of cells that were finished before this run.
        finished, failed, waiting: numbers of cells of this run. In a race, cells that the race has not asked for are
            not counted.
        running: cells that are running, in the order of their starts.
        rate: cells that ended per second over the last minutes.
        eta: estimated seconds until everything is done, artifacts included.
        measured: share of the estimate that rests on measurements, 0 to 1. It is the smaller one of the shares for
            artifacts and for cells.
        failures: the latest failures.
        memory, gpus: memory and GPUs of the driver's machine.
        phase: what the run waits for, such as ``starting Ray workers``; empty once a cell has started or an artifact
            has ended.
        race: the decisions of a race so far, in one line; empty without a race.
        left_out: number of cells that the race does not need any more.
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
    left_out: int = 0

    @property
    def total(self) -> int:
        """Number of cells that have finished, have failed, run or wait. In a race, only those that it has asked for."""
        return self.before + self.finished + self.failed + len(self.running) + self.waiting

    @property
    def done(self) -> int:
        """Number of finished cells, including the cells of earlier runs."""
        return self.before + self.finished

    @property
    def built(self) -> int:
        """Number of artifacts that this run has built."""
        return sum(stage.built for stage in self.stages)

    @property
    def artifacts(self) -> int:
        """Number of artifacts that this run has to build, or has built already."""
        return sum(stage.total for stage in self.stages)

    @property
    def left(self) -> bool:
        """Whether any cell or artifact is not done yet."""
        ended = self.built + sum(stage.failed for stage in self.stages)
        return ended < self.artifacts or bool(self.running) or self.waiting > 0

    @property
    def rate_text(self) -> str:
        """The rate as text: cells per minute, or cells per second for a high rate."""
        return f"{self.rate:.1f} cells/s" if self.rate >= 2 else f"{60 * self.rate:.1f} cells/min"

    @property
    def has_estimate(self) -> bool:
        """Whether work is left and at least ``MEASURED_SHARE`` of its estimate rests on measurements.

        The rest of an estimate rests on an assumed speed, which can be wrong by a factor of ten.
        """
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
        """The outcome of the run in one line, shown when the run has ended."""
        parts = [f"{self.built} of {self.artifacts} artifacts built"] if self.artifacts else []
        parts.append(f"{pluralize(self.finished, 'cell')} finished")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if left := len(self.running) + self.waiting:
            parts.append(f"{left} not done")
        return f"{', '.join(parts)} in {human_duration(self.elapsed)}"
