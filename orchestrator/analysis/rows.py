"""Results as rows: one row per cell and test split. Every table and figure is computed from these rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from orchestrator.analysis.scores import Score, Scores
from orchestrator.core.cell import Cell, LabelOf, Place
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracks import MetricName, stored_track
from orchestrator.tracks.base import GroupMean
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import fingerprint


@dataclass(frozen=True)
class Row:
    """The score of one cell on one test split, with the fields that identify both. Scores are in per cent.

    Attributes:
        dataset: the target that the method adapted to.
        evaluated_on: the dataset whose test split was scored.
        k, seed: 0 for a method that uses no support.
        method: the label in tables.
        method_name: the method's identifier, which decides its colour.
        gain: accuracy minus the zero-shot accuracy on the same images, in points.
        metric, score: the metric by which methods are compared, and its value.
        score_zero_shot: the value of the metric for zero-shot on the same images; ``None`` if no cell measured it.
        total: number of test images.
        published, delta: the published accuracy, and measured minus published; ``None`` if the paper prints none.
        accuracy_own_classes, accuracy_zero_shot_own_classes: accuracy with predictions limited to the classes of the
            test split; ``None`` unless the test split has fewer classes than the target.
        short_classes: how many of the target's classes have fewer than k training images.
        classes: the number of classes from which predictions are chosen.
        selects_on_test: whether the protocol may choose settings on the test set.
    """

    track: str
    protocol: str
    backbone: str
    domain: str
    dataset: str
    evaluated_on: str
    k: int
    method: str
    method_name: str
    seed: int
    accuracy: float
    accuracy_zero_shot: float
    gain: float
    metric: MetricName
    score: float
    score_zero_shot: float | None
    total: int
    trainable_parameters: int
    fit_seconds: float
    eval_seconds: float
    peak_memory_mib: float
    cell_id: str
    published: float | None = None
    delta: float | None = None
    accuracy_own_classes: float | None = None
    accuracy_zero_shot_own_classes: float | None = None
    short_classes: int = 0
    classes: int = 0
    selects_on_test: bool = False

    @property
    def place(self) -> Place:
        """The track, protocol, backbone and domain."""
        return Place(self.track, self.protocol, self.backbone, self.domain)

    @property
    def test(self) -> str:
        """The name of the test split, with the target's name before it if the two differ."""
        return test_name(self.dataset, self.evaluated_on)

    @property
    def target_classes(self) -> int:
        """The number of the target's classes; 0 if the test split is scored with its own class words."""
        return 0 if stored_track(self.track).own_words and self.evaluated_on != self.dataset else self.classes

    @property
    def averaged(self) -> bool:
        """Whether a mean over test splits includes this row.

        On a track with shifted test sets, the mean leaves out the target's own test split. On a track with a mean over
        class groups, it includes only the row with this mean.
        """
        track = stored_track(self.track)
        if track.group_mean is not None:
            return self.evaluated_on not in (self.dataset, *track.class_groups)
        return self.dataset != self.evaluated_on or track.averages_target

    @property
    def score_gain(self) -> float | None:
        """The points by which the score is better than that of zero-shot; ``None`` if the latter is unknown."""
        from orchestrator.analysis.metrics import METRICS  # imports NumPy

        frozen = self.score_zero_shot
        return None if frozen is None else METRICS[self.metric].sign * (self.score - frozen)


ROW_FIELDS = tuple(field.name for field in fields(Row))
"""The names of a row's fields, in their order."""

PublishedOf = Callable[[Row], "float | None"]
"""``row -> the published accuracy of the same measurement``, ``None`` if the paper prints none."""

NamesOf = Callable[[str, str], "tuple[str | None, str | None]"]
"""``(backbone, dataset) -> their names in the paper's tables``, ``None`` for a name that the paper does not have."""


@dataclass(frozen=True)
class SourceRow:
    """Accuracy of a source model on its own task, before (zero-shot) and after fine-tuning, in per cent."""

    backbone: str
    domain: str
    dataset: str
    zero_shot_accuracy: float
    fine_tuned_accuracy: float
    total: int

    @property
    def gain(self) -> float:
        """The gain of fine-tuning, in points."""
        return self.fine_tuned_accuracy - self.zero_shot_accuracy


def test_name(dataset: str, evaluated_on: str) -> str:
    """Return ``evaluated_on`` if it is the target ``dataset``, otherwise ``dataset → evaluated_on``."""
    return evaluated_on if dataset == evaluated_on else f"{dataset} → {evaluated_on}"


def labels_of(cells: Iterable[Cell], label_of: LabelOf) -> dict[str, str]:
    """Return the label of every cell, by cell id.

    Tables tell cells at the same position apart by their labels alone, so such cells get different labels. If
    ``label_of`` gives two of them the same label, the name of each cell's rule for sources is appended. If labels are
    still equal, a digest of method and settings is appended; if that does not help, a number.
    """
    unique = {cell.id: cell for cell in cells}
    labels = {id_: label_of(cell) for id_, cell in unique.items()}
    for suffix_of in (lambda cell: cell.sources_rule, lambda cell: fingerprint(cell.method)):
        if not (shared := {position[-1] for position, ids in _by_position(unique, labels).items() if len(ids) > 1}):
            return labels
        for label in shared:
            suffixes = {id_: suffix_of(cell) for id_, cell in unique.items() if labels[id_] == label}
            if len(set(suffixes.values())) > 1:
                labels.update({id_: f"{label} [{suffix}]" for id_, suffix in suffixes.items()})
    for position, ids in _by_position(unique, labels).items():
        for number, id_ in enumerate(sorted(ids)[1:], start=2):
            labels[id_] = f"{position[-1]} #{number}"
    return labels


def _by_position(cells: Mapping[str, Cell], labels: Mapping[str, str]) -> dict[tuple[object, ...], list[str]]:
    """Return position -> ids of the cells with this position.

    A position holds the fields by which tables tell cells apart. The label is its last field.
    """
    return grouped(cells, lambda id_: (*(c := cells[id_]).place, c.dataset.name, c.shots, c.seed, labels[id_]))


def row_list(
    results: Sequence[Result], labels: Mapping[str, str], scores: Scores, published_of: PublishedOf | None = None
) -> list[Row]:
    """Return the rows of ``results``, in the same order. ``labels``: the return value of :func:`labels_of`.

    If a cell's track has a mean over class groups, a row with this mean follows the rows of the cell's test splits. A
    result without a score has no rows.
    """
    from orchestrator.analysis.metrics import METRICS  # imports NumPy

    rows = []
    for result in results:
        scored = [(one, scores.get((result.cell.id, one.dataset))) for one in result.evaluations]
        own = [_row(result, one, labels[result.cell.id], score, published_of) for one, score in scored if score]
        track = stored_track(result.cell.track)
        rows += own
        if own and (mean := METRICS[own[0].metric].group_mean(track)) is not None:
            rows.append(_group_mean_row(own[-len(track.class_groups) :], mean))
    return rows


def _group_mean_row(groups: Sequence[Row], mean: GroupMean) -> Row:
    """Return the row with the mean over a cell's class groups, from the groups' rows."""
    accuracy = mean.of(*(row.accuracy for row in groups))
    zero_shot = mean.of(*(row.accuracy_zero_shot for row in groups))
    frozen = [row.score_zero_shot for row in groups if row.score_zero_shot is not None]
    return replace(
        groups[0],
        evaluated_on=mean.name,
        accuracy=accuracy,
        accuracy_zero_shot=zero_shot,
        gain=accuracy - zero_shot,
        score=mean.of(*(row.score for row in groups)),
        score_zero_shot=mean.of(*frozen) if len(frozen) == len(groups) else None,
        total=sum(row.total for row in groups),
        classes=sum(row.classes for row in groups),
        published=None,
        delta=None,
    )


def _row(result: Result, evaluation: Evaluation, label: str, score: Score, published_of: PublishedOf | None) -> Row:
    cell = result.cell
    row = Row(
        track=cell.track,
        protocol=cell.protocol.name,
        backbone=cell.backbone.name,
        domain=cell.domain,
        dataset=cell.dataset.name,
        evaluated_on=evaluation.dataset,
        k=cell.shots,
        method=label,
        method_name=cell.method.name,
        seed=cell.seed,
        accuracy=evaluation.accuracy,
        accuracy_zero_shot=evaluation.accuracy_zero_shot,
        gain=evaluation.accuracy - evaluation.accuracy_zero_shot,
        metric=score.metric,
        score=score.value,
        score_zero_shot=score.zero_shot,
        total=evaluation.total,
        trainable_parameters=result.trainable_parameters,
        fit_seconds=result.timings.fit_seconds,
        eval_seconds=result.timings.eval_seconds,
        peak_memory_mib=result.peak_memory_mib,
        cell_id=cell.id,
        accuracy_own_classes=evaluation.accuracy_own_classes,
        accuracy_zero_shot_own_classes=evaluation.accuracy_zero_shot_own_classes,
        short_classes=int(result.details.get("short_classes", 0)),
        classes=len(evaluation.per_class),
        selects_on_test=cell.selects_on_test,
    )
    published = published_of(row) if published_of else None
    return row if published is None else replace(row, published=published, delta=row.accuracy - published)
