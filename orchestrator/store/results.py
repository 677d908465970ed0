"""The records of finished and failed cells: their fields, their JSON text, and their checks.

The text of a result ends with the checksum of everything before. So a file that was cut off, edited or mixed up with
another file is never read as a finished cell.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, asdict, dataclass, fields
from functools import cache
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, PlainValidator, TypeAdapter, ValidationError

from orchestrator.core.cell import Cell
from orchestrator.core.intervals import wilson_interval
from orchestrator.tracks import stored_track
from orchestrator.util.errors import UserError

_NEWEST = 3
"""Format of the result files that are written."""

_FORMAT = re.compile(r'\{\n "format": (\d{1,4}),')
"""Matches the beginning of a result file."""

_CHECKSUM_KEY = ',\n "sha256": "'

_ROUNDING = 1e-6
"""Tolerance of the check that a zero-shot accuracy fits N images. The number of correct images is accuracy * N / 100.
It must be whole up to this tolerance * N, because floating-point numbers are rounded."""

Count = Annotated[int, Field(ge=0)]
Percentage = Annotated[float, Field(ge=0, le=100)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Strict:
    """Base class of records that are validated by exact types: ``True`` is not a count, and a text is not a number."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", revalidate_instances="always")


@dataclass(frozen=True)
class Evaluation(_Strict):
    """The score on one dataset's test split.

    Attributes:
        dataset: name of the dataset, or of a group of the target's classes.
        accuracy: top-1 accuracy, per cent.
        correct, total: number of correctly classified images, and of all images.
        accuracy_zero_shot: accuracy of the frozen backbone with its text head on the same images, per cent.
        per_class: (correct, total) of each class.
        accuracy_own_classes: top-1 accuracy among the classes that occur in this test split, per cent; ``None`` if all
            of the target's classes occur, or if the protocol does not ask for it (``ood_label_space``).
        accuracy_zero_shot_own_classes: the same accuracy of the frozen backbone.
    """

    dataset: str
    accuracy: Percentage
    correct: Count
    total: Count
    accuracy_zero_shot: Percentage
    per_class: tuple[tuple[Count, Count], ...]
    accuracy_own_classes: Percentage | None
    accuracy_zero_shot_own_classes: Percentage | None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, in per cent, of the accuracy on new test images of the same kind."""
        return wilson_interval(self.correct / self.total, self.total)


def _check_counts(found: Evaluation) -> Evaluation:
    """Return the evaluation. Raises ``ValueError`` unless its accuracies and its counts agree."""
    correct, total = found.correct, found.total
    if not total or found.accuracy != 100.0 * correct / total:
        raise ValueError(f"the accuracy is {found.accuracy}, but {correct} of {total} images are correct")
    zero_shot_images = found.accuracy_zero_shot * total / 100.0
    if abs(zero_shot_images - round(zero_shot_images)) > _ROUNDING * total:
        raise ValueError(f"accuracy_zero_shot {found.accuracy_zero_shot} gives no whole number of {total} images")
    if (found.accuracy_own_classes is None) != (found.accuracy_zero_shot_own_classes is None):
        raise ValueError("one of accuracy_own_classes and accuracy_zero_shot_own_classes is missing")
    if any(hits > size for hits, size in found.per_class):
        raise ValueError("in per_class, the correct images of a class outnumber its images")
    sums = sum(hits for hits, _ in found.per_class), sum(size for _, size in found.per_class)
    if sums != (correct, total):
        raise ValueError(f"per_class adds up to {sums[0]} of {sums[1]} images, but {correct} of {total} are correct")
    return found


@dataclass(frozen=True)
class Timings(_Strict):
    """Wall-clock seconds: preparing the inputs, adapting, scoring."""

    prepare_seconds: FiniteFloat
    fit_seconds: FiniteFloat
    eval_seconds: FiniteFloat

    @property
    def total(self) -> float:
        return self.prepare_seconds + self.fit_seconds + self.eval_seconds


@dataclass(frozen=True)
class Manifest(_Strict):
    """The code, hardware and artifacts that made a result.

    Attributes:
        commit: commit of the project; empty without version control.
        dirty: whether files differ from the commit.
        versions: versions of Python and of the packages that can change a number.
        device: the processor or accelerator.
        threads: the number of CPU threads that compute.
        artifacts: addresses of the artifacts that the cell read.
        finished_at: UTC time, ISO 8601.
        precision: number format of the towers' products: ``float32``, ``tf32`` or ``bfloat16``; empty in results of
            earlier versions, which used float32.
        cuda_graphs: a field of results of earlier versions, which is ignored.
    """

    commit: str
    dirty: bool
    versions: Mapping[str, str]
    device: str
    threads: Count
    artifacts: tuple[str, ...]
    finished_at: str
    precision: str = ""
    cuda_graphs: InitVar[bool] = False

    def differences(self, now: Manifest) -> dict[str, tuple[str, str]]:
        """Return where this manifest and ``now`` differ, as name -> (value here, value in ``now``).

        The names are ``device``, ``threads`` and the keys of ``versions``. Each can change the last bits of a number.
        """
        ours, theirs = ({"device": of.device, "threads": str(of.threads), **of.versions} for of in (self, now))
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        return {name: (ours.get(name, "none"), theirs.get(name, "none")) for name in names}


@dataclass(frozen=True)
class PredictionsFile(_Strict):
    """Size in bytes and checksum of a cell's predictions file (:mod:`orchestrator.store.predictions`)."""

    size: Count
    sha256: Checksum


def _as_cell(value: Any) -> Cell:
    """Return a cell unchanged, or make it from its JSON fields. Raises ``ValueError`` for missing or unknown fields."""
    if isinstance(value, Cell):
        return value
    try:
        cell = Cell.from_dict(value)
        if cell.to_dict() == value:
            return cell
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error
    raise ValueError("fields are missing or unknown")


@dataclass(frozen=True)
class Result(_Strict):
    """One finished cell.

    Attributes:
        curves: name -> one number per epoch: ``train_loss``, ``learning_rate``, and on the ``meta`` track ``accuracy``.
        details: values that the method chose or counted (``alpha``), and ``short_classes``, the number of classes with
            fewer training images than k.
        support_size: number of labelled images used.
        predictions: the predictions file; ``None`` for a result without predictions.
    """

    cell: Annotated[Cell, PlainValidator(_as_cell)]
    evaluations: tuple[Annotated[Evaluation, AfterValidator(_check_counts)], ...]
    trainable_parameters: Count
    timings: Timings
    peak_memory_mib: FiniteFloat
    support_size: Count
    manifest: Manifest
    curves: Mapping[str, tuple[float, ...]]
    details: Mapping[str, bool | int | float | str]
    predictions: PredictionsFile | None = None

    @property
    def target_evaluation(self) -> Evaluation | None:
        """The evaluation on the target itself; ``None`` if only other datasets were scored."""
        return next((found for found in self.evaluations if found.dataset == self.cell.dataset.name), None)

    @property
    def accuracies(self) -> tuple[float, float]:
        """Accuracy and zero-shot accuracy on the target, per cent.

        If the target itself was not scored, they are means over the scored datasets.
        """
        target = self.target_evaluation
        scored = [target] if target else self.evaluations
        return fmean(e.accuracy for e in scored), fmean(e.accuracy_zero_shot for e in scored)

    @property
    def shifted_accuracy(self) -> float | None:
        """The mean accuracy on the shifted test sets alone; ``None`` on tracks without such sets."""
        shifted = [e.accuracy for e in self.evaluations if e.dataset != self.cell.dataset.name]
        return fmean(shifted) if shifted and stored_track(self.cell.track).scores_variants else None

    def check(self) -> None:
        """Raise ``ValueError``, naming the field, if the fields are inconsistent or do not fit the cell."""
        with field_named():
            _validator(_CHECKED_RESULT).validate_python(self)

    def to_json(self) -> str:
        """Return the text of the result file, its checksum last. Raises the errors of :meth:`check`."""
        self.check()
        body = {**asdict(self), "cell": self.cell.to_dict()}
        record = {"format": _NEWEST, "id": self.cell.id, **body, "status": "finished"}
        text = json.dumps(record, indent=1).removesuffix("\n}")
        return f'{text}{_CHECKSUM_KEY}{_checksum(text)}"\n}}'

    @classmethod
    def of_cell(cls, cell_id: str, content: bytes) -> Result:
        """Return the result in the file of a cell.

        Raises ``ValueError`` if the checksum is wrong, if fields are missing or unknown, or if the result is of another
        cell. Raises the errors of :meth:`check`. Raises ``UserError`` for a result that a later version wrote: it is
        not damaged, so it must not be measured again.
        """
        text = content.decode("utf-8", "replace")
        body, _, checksum = text.rpartition(_CHECKSUM_KEY)
        if checksum != f'{_checksum(body)}"\n}}':
            raise ValueError("sha256: the checksum differs, so this is not the text that was written")
        if (written := _FORMAT.match(text)) and int(written[1]) > _NEWEST:
            what = f"the result {cell_id} has format {written[1]}, which a later version of this project wrote"
            raise UserError(what, hint="use that version, or another store")
        with field_named():
            record: _Record = _validator(_CHECKED_RECORD).validate_json(text)
        if not cell_id == record.id == record.cell.id:
            raise ValueError(f"id: the file of {cell_id} says {record.id}, and the cell inside is {record.cell.id}")
        return cls(**{each.name: getattr(record, each.name) for each in fields(cls)})


def _check_scored(found: Result) -> Result:
    """Return the result. Raises ``ValueError`` unless it has exactly the scores that its cell asks for, in order.

    A cell asks for a score on each dataset in ``evaluate_on``, and then on each of the track's groups of classes.
    """
    asked = (*(ref.name for ref in found.cell.evaluate_on), *stored_track(found.cell.track).class_groups)
    scored = tuple(evaluation.dataset for evaluation in found.evaluations)
    if scored != asked:
        raise ValueError(f"evaluations: the result has scores on {scored}, but the cell asks for {asked}")
    return found


@dataclass(frozen=True, kw_only=True)
class _Record(Result):
    """The content of a result file. Format 3 is written. Format 2, which has no predictions, is read as well."""

    format: Literal[2, 3]
    id: str
    status: Literal["finished"]
    sha256: str


@dataclass(frozen=True)
class Failure(_Strict):
    """A cell or artifact that could not be made.

    Attributes:
        id: the cell's id or the artifact's address.
        error: type and message of the error, in one line.
        log: path or URL of the log; empty if there is none.
        failed_at: UTC time, ISO 8601.
        retryable: whether the same command tries again, because the cell or artifact did not cause its failure: the
            worker died, or an artifact that the cell reads was damaged.
    """

    id: str
    error: str
    traceback: str
    log: str
    attempts: Count
    failed_at: str
    retryable: Annotated[bool, Field(validation_alias="again")] = False  # "again" in the file

    def to_json(self) -> str:
        stored = asdict(self)
        stored["again"] = stored.pop("retryable")
        return json.dumps(stored, indent=1)

    @classmethod
    def from_json(cls, content: bytes) -> Failure:
        """Return the failure in a failure file. Raises ``ValueError``, naming the field, for invalid content."""
        with field_named():
            failure: Failure = _validator(Failure).validate_json(content)
        return failure


_CHECKED_RESULT = Annotated[Result, AfterValidator(_check_scored)]
_CHECKED_RECORD = Annotated[_Record, AfterValidator(_check_scored)]


@cache
def _validator(checked: Any) -> TypeAdapter[Any]:
    """Return the validator of a type. Making one takes 20 ms, so each is made when it is first used."""
    return TypeAdapter(checked)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def field_named() -> Iterator[None]:
    """Turn a ``ValidationError`` of the block into a ``ValueError`` that names the first field with a problem."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {first['msg']}" if path else first["msg"]) from None


def failed_for_good(failures: Iterable[Failure]) -> frozenset[str]:
    """Return the ids of the final failures: running the same command again does not retry them."""
    return frozenset(failure.id for failure in failures if not failure.retryable)
