"""The record of one finished (or failed) cell, and how it is written and read. Results are the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from orchestrator.cell import Cell

RESULT_FORMAT = 1


@dataclass(frozen=True)
class Evaluation:
    """The score on one dataset's test split.

    Attributes:
        dataset: name of the dataset.
        accuracy: top-1, per cent.
        correct, total: the counts it is made of.
        accuracy_zero_shot: the frozen backbone with its text head on the same images, per cent.
        per_class: (correct, total) of each class.
        accuracy_own_classes: top-1 among the classes that occur in this test split alone, per cent; ``None`` where all
            of the target's do, or where the protocol leaves it out (``ood_label_space``).
        accuracy_zero_shot_own_classes: the same of the frozen backbone.
    """

    dataset: str
    accuracy: float
    correct: int
    total: int
    accuracy_zero_shot: float
    per_class: tuple[tuple[int, int], ...]
    accuracy_own_classes: float | None = None
    accuracy_zero_shot_own_classes: float | None = None


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds: getting inputs ready, adapting, scoring."""

    prepare_seconds: float
    fit_seconds: float
    eval_seconds: float

    @property
    def total(self) -> float:
        return self.prepare_seconds + self.fit_seconds + self.eval_seconds


@dataclass(frozen=True)
class Manifest:
    """What a result was made with and from.

    Attributes:
        commit, dirty: version-control state of the project (empty when installed without it).
        versions: of Python and the packages that can move a number.
        device: name of the processor or accelerator the cell ran on.
        threads: CPU threads the arithmetic used.
        artifacts: addresses of the artifacts it read.
        finished_at: UTC time, ISO 8601.
    """

    commit: str
    dirty: bool
    versions: Mapping[str, str]
    device: str
    threads: int
    artifacts: tuple[str, ...]
    finished_at: str


@dataclass(frozen=True)
class Result:
    """One finished cell.

    Attributes:
        curves: per-epoch numbers by name, epoch 1 first: ``train_loss``, ``learning_rate``, and on the ``meta`` track
            ``accuracy``.
        details: what the method chose or counted (``alpha``), and ``short_classes``: how many classes had fewer
            training images than k, where any had.
        support_size: labelled images used.
    """

    cell: Cell
    evaluations: tuple[Evaluation, ...]
    trainable_parameters: int
    timings: Timings
    peak_memory_mib: float
    support_size: int
    manifest: Manifest
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    details: Mapping[str, float | int | str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The result file's text; the status stands last, so that a truncated file cannot be read as finished."""
        body = asdict(self)
        body["cell"] = self.cell.to_dict()
        return json.dumps({"format": RESULT_FORMAT, "id": self.cell.id, **body, "status": "finished"}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read a result file.

        Raises ``ValueError`` when the text is not a whole result of this format, or when the identity inside does
        not give the id it carries (somebody edited the file, or the format changed without its version).
        """
        try:
            data = json.loads(text)
            if data["format"] != RESULT_FORMAT or data["status"] != "finished":
                raise ValueError(f"format {data['format']}, status {data['status']}")
            cell = Cell.from_dict(data["cell"])
            if cell.id != data["id"]:
                raise ValueError(f"the cell inside has the id {cell.id}, the file says {data['id']}")
            manifest = data["manifest"]
            return cls(
                cell=cell,
                evaluations=tuple(
                    Evaluation(**{**e, "per_class": tuple((int(c), int(n)) for c, n in e["per_class"])})
                    for e in data["evaluations"]
                ),
                trainable_parameters=data["trainable_parameters"],
                timings=Timings(**data["timings"]),
                peak_memory_mib=data["peak_memory_mib"],
                support_size=data["support_size"],
                manifest=Manifest(**{**manifest, "artifacts": tuple(manifest["artifacts"])}),
                curves={name: tuple(values) for name, values in data["curves"].items()},
                details=data["details"],
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a whole result file: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class Failure:
    """A cell or artifact that could not be made: what happened and where to read on. Never served as a result.

    Attributes:
        id: the cell's id or the artifact's address.
        error: type and message, one line.
        traceback: the whole of it.
        log: path or URL of the log, empty if there is none.
        attempts: how often it was tried.
        failed_at: UTC time, ISO 8601.
    """

    id: str
    error: str
    traceback: str
    log: str
    attempts: int
    failed_at: str

    def to_json(self) -> str:
        """The failure file's text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """Read a failure file; raises ``ValueError`` for what is not one."""
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a failure file: {error}") from error
