"""How far a run is at one moment: plain data that the terminal shows and the status file holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.util.machine import Gpu, Memory
from orchestrator.util.units import human_duration


@dataclass(frozen=True)
class Stage:
    """The artifacts of one kind that a run builds. ``failed`` counts those skipped for want of a failed one too."""

    name: str
    built: int
    failed: int
    total: int


@dataclass(frozen=True)
class UnderWay:
    """A cell or an artifact that is being made.

    Attributes:
        seconds: since it was started.
        expected: how long such a thing takes, in seconds; ``None`` where nothing like it was measured.
        told: how far its builder says it is, if it does.
    """

    name: str
    seconds: float
    expected: float | None = None
    told: str = ""


@dataclass(frozen=True)
class Failed:
    """A cell or an artifact that could not be made."""

    name: str
    error: str
    log: str


@dataclass(frozen=True)
class Snapshot:
    """How far a run is.

    Attributes:
        elapsed: seconds since it began.
        stages: in the order they are built.
        building: artifacts under way.
        before: cells that were finished before this run.
        finished, failed, waiting: cells of this run.
        running: cells under way, the longest first.
        rate: cells ended per second over the last minutes.
        eta: seconds until all is done, artifacts included.
        measured: the share of that which rests on measured work, 0 to 1.
        failures: the last ones.
        memory, gpus: of the driver's machine.
    """

    elapsed: float = 0.0
    stages: tuple[Stage, ...] = ()
    building: tuple[UnderWay, ...] = ()
    before: int = 0
    finished: int = 0
    failed: int = 0
    waiting: int = 0
    running: tuple[UnderWay, ...] = ()
    rate: float = 0.0
    eta: float = 0.0
    measured: float = 1.0
    failures: tuple[Failed, ...] = ()
    memory: Memory | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def total(self) -> int:
        """Cells of the grid, but for those on record as failed that are not tried again."""
        return self.before + self.finished + self.failed + len(self.running) + self.waiting

    @property
    def done(self) -> int:
        """Finished cells, those of earlier runs included."""
        return self.before + self.finished

    @property
    def built(self) -> int:
        """Artifacts this run has built."""
        return sum(stage.built for stage in self.stages)

    @property
    def artifacts(self) -> int:
        """Artifacts this run builds in all."""
        return sum(stage.total for stage in self.stages)

    @property
    def left(self) -> bool:
        """Whether anything is still to do."""
        ended = self.built + sum(stage.failed for stage in self.stages)
        return ended < self.artifacts or bool(self.running) or self.waiting > 0

    @property
    def rate_words(self) -> str:
        """Cells a minute, or a second where they are many."""
        return f"{self.rate:.1f} cells/s" if self.rate >= 2 else f"{60 * self.rate:.1f} cells/min"

    @property
    def eta_words(self) -> str:
        """What is left, and a warning when most of it is reckoned and not measured."""
        if self.measured < 0.5:
            return f"very roughly {human_duration(self.eta)} left (nothing like it was measured yet)"
        return f"about {human_duration(self.eta)} left"

    @property
    def line(self) -> str:
        """All of it in one line, for logs."""
        parts = []
        if any(stage.built + stage.failed < stage.total for stage in self.stages):
            parts.append(f"artifacts {self.built}/{self.artifacts}")
            parts += [f"{one.name}: {one.told}" for one in self.building if one.told][:1]
        parts.append(f"cells {self.done}/{self.total}: {len(self.running)} running, {self.waiting} waiting")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.rate:
            parts.append(self.rate_words)
        if self.left:
            parts.append(self.eta_words)
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; ``status_file.py`` reads them back equal."""
        return asdict(self)
