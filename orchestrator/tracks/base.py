"""The class of tracks: what a track gives to a method, how it scores a cell, and what the report shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bolt.methods import Method, TowerPasses
    from bolt.protocol import Protocol
    from bolt.task.support import SupportDraw

SupportSplit = Literal["train", "test"]
MetricName = Literal[
    "accuracy", "balanced_accuracy", "macro_f1", "worst_class", "calibration_error", "brier", "accuracy_surest_50",
    "accuracy_surest_80", "share_at_95",
]  # fmt: skip
"""The metrics by which methods can be compared; :mod:`orchestrator.analysis.metrics` computes them."""


def support_passes(method: Method, settings: Any, support_size: int, test_size: int) -> TowerPasses:
    """Return how many images a method takes through the tower to learn from a labelled support."""
    return method.tower_passes(support_size, settings)


@dataclass(frozen=True)
class GroupMean:
    """A mean over class groups.

    Attributes:
        name: name of the mean in tables.
        of: ``of(*values)`` -> the mean. The values are in the order of :attr:`Track.class_groups`.
    """

    name: str
    of: Callable[..., float]


ARITHMETIC_MEAN = GroupMean("mean", lambda *values: sum(values) / len(values))


@dataclass(frozen=True)
class Track:
    """One way to give the images of a target to methods, and to score the adapted models.

    Attributes:
        name: the value of ``track`` in grid files, cells and results.
        title: the name in reports.
        method_track: the name that methods write into their ``tracks`` and ``track_defaults`` if they can be measured
            on this track. If it is empty, they write the track's own name.
        gives_support: whether a method gets a labelled support, k images per class. If not, it gets the target's test
            images without labels, and the grid states seeds for the track, but no k.
        support_split: ``support_split(protocol)`` -> the split of the target from which supports are drawn.
        support_draw: ``support_draw(protocol)`` -> the value of ``draw`` in :func:`bolt.task.support.draw_support`.
        base_classes: ``base_classes(C)`` -> how many of the target's C classes, from the first on, are base classes. A
            method adapts to the base classes only, and has to classify the others by their names. ``None`` if a method
            adapts to all classes.
        class_groups: names of the groups of the target's classes that are also scored separately. In results, the
            groups' scores are listed after the datasets' scores.
        group_mean: the mean of the groups' accuracies. Verdicts and means over datasets use this mean, or the
            arithmetic mean if the metric is an error, such as the calibration error (``Metric.group_mean``).
        scores_variants: whether a grid may name, in ``evaluate_on``, the datasets that are scored instead of the
            target.
        own_words: whether the datasets in ``evaluate_on`` have other classes than the target, and are scored with their
            own class words. Methods must then be able to classify classes to which they were not adapted.
        averages_target: whether a mean over test sets includes the target.
        scored_after_epochs: whether the classifier is also scored after every epoch of training.
        tower_passes: ``tower_passes(method, settings, support_size, test_size)`` -> the number of images that pass
            through the tower in a cell. Plans estimate a cell's time from this number.
        published_shots: ``published_shots(k)`` -> the k under which the paper prints a cell's accuracy; ``None`` if the
            paper prints none.
        metric: the default metric for comparing methods.
        lead_tables: the names of the tables that the report shows first.
        named_in_titles: whether titles name the track even in a report with this track only.
    """

    name: str
    title: str
    method_track: str = ""
    gives_support: bool = True
    support_split: Callable[[Protocol], SupportSplit] = lambda protocol: "train"
    support_draw: Callable[[Protocol], SupportDraw] = lambda protocol: protocol.support_draw
    base_classes: Callable[[int], int] | None = None
    class_groups: tuple[str, ...] = ()
    group_mean: GroupMean | None = None
    scores_variants: bool = False
    own_words: bool = False
    averages_target: bool = True
    scored_after_epochs: bool = False
    tower_passes: Callable[[Method, Any, int, int], TowerPasses] = support_passes
    published_shots: Callable[[int | None], int | None] = lambda shots: shots
    metric: MetricName = "accuracy"
    lead_tables: tuple[str, ...] = ("main",)
    named_in_titles: bool = True

    @property
    def meets_new_classes(self) -> bool:
        """Whether a method is scored on classes to which it was not adapted."""
        return self.base_classes is not None or self.own_words

    def takes(self, method: Method) -> bool:
        """Return whether a method can be measured on this track."""
        if self.meets_new_classes and not method.names_new_classes:
            return False
        return (self.method_track or self.name) in method.tracks

    def configure(self, method: Method, changes: Mapping[str, Any]) -> Any:
        """Return a method's settings: its defaults on this track, with ``changes``.

        Raises the errors of ``Method.configure``.
        """
        return method.configure(changes, self.method_track or self.name)
