"""The record of one finished (or failed) cell, and how it is written and read. Results are the truth.

A result file ends with the checksum of everything before it, so one that was cut, changed or mixed up with another is
never taken for a finished cell. What was written is read back exactly, or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from bolt.protocol import Protocol
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.store.validation import check_result

RESULT_FORMAT = 2
"""The format that is written; 1 is the same without the checksum, and is still read."""

_SEAL = ',\n "sha256": "'


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

    def check(self) -> None:
        """Raise ``ValueError``, naming the field, unless this can be what scoring a cell gave (``soundness.py``)."""
        check_result(self)

    def to_json(self) -> str:
        """The result file's text; its checksum stands last. Raises ``ValueError`` for what :meth:`check` refuses."""
        self.check()
        body = asdict(self)
        body["cell"] = self.cell.to_dict()
        whole = {"format": RESULT_FORMAT, "id": self.cell.id, **body, "status": "finished"}
        text = json.dumps(whole, indent=1).removesuffix("\n}")
        return f'{text}{_SEAL}{_checksum(text)}"\n}}'

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read a result file.

        Raises ``ValueError`` when the text is not, to the letter, a whole result of this format; when the identity
        inside does not give the id it carries (somebody edited the file, or the format changed without its version);
        and for what :meth:`check` refuses.
        """
        try:
            data = json.loads(text)
            if data["status"] != "finished":
                raise ValueError(f"format {data['format']}, status {data['status']}")
            if data.keys() != _KEYS.get(data["format"]) or not _complete(data):
                raise ValueError(f"fields are missing or too many for format {data['format']}")
            cell = Cell.from_dict(data["cell"])
            if cell.id != data["id"]:
                raise ValueError(f"the cell inside has the id {cell.id}, the file says {data['id']}")
            if data["format"] == RESULT_FORMAT:
                body, _, seal = text.rpartition(_SEAL)
                if seal != f'{_checksum(body)}"\n}}':
                    raise ValueError("its checksum differs: it is not the file that was written")
            manifest = data["manifest"]
            found = cls(
                cell=cell,
                evaluations=tuple(
                    Evaluation(**{**e, "per_class": tuple(map(tuple, e["per_class"]))}) for e in data["evaluations"]
                ),
                trainable_parameters=data["trainable_parameters"],
                timings=Timings(**data["timings"]),
                peak_memory_mib=data["peak_memory_mib"],
                support_size=data["support_size"],
                manifest=Manifest(**{**manifest, "artifacts": tuple(manifest["artifacts"])}),
                curves={name: tuple(values) for name, values in data["curves"].items()},
                details=data["details"],
            )
            found.check()
        except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"not a whole result file: {type(error).__name__} {error}") from error
        return found


_BODY = frozenset({"format", "id", "status", *(each.name for each in fields(Result))})
_KEYS: Mapping[Any, frozenset[str]] = {1: _BODY, RESULT_FORMAT: _BODY | {"sha256"}}
_CELL_KEYS, _PROTOCOL_KEYS, _METHOD_KEYS, _EVALUATION_KEYS = (
    frozenset(each.name for each in fields(kind)) for kind in (Cell, Protocol, MethodRef, Evaluation)
)


def _complete(data: Mapping[str, Any]) -> bool:
    """Whether nothing is left to a default and nothing is passed over, where reading would let that happen."""
    cell = data["cell"]
    return (
        cell.keys() == _CELL_KEYS
        and cell["protocol"].keys() == _PROTOCOL_KEYS
        and cell["method"].keys() == _METHOD_KEYS
        and all(evaluation.keys() == _EVALUATION_KEYS for evaluation in data["evaluations"])
    )


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
        again: the same command tries it again, because it was not its own fault: its worker died, or an artifact that
            it reads was damaged.
    """

    id: str
    error: str
    traceback: str
    log: str
    attempts: int
    failed_at: str
    again: bool = False

    def to_json(self) -> str:
        """The failure file's text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """Read a failure file; raises ``ValueError`` for what is not one."""
        try:
            found = cls(**json.loads(text))
        except (TypeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"not a failure file: {error}") from error
        words = (found.id, found.error, found.traceback, found.log, found.failed_at)
        kinds = type(found.attempts), type(found.again)
        if any(type(word) is not str for word in words) or kinds != (int, bool) or found.attempts < 0:
            raise ValueError("not a failure file: a field is of another kind")
        return found
