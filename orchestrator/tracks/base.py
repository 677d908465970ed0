"""What a track says: what it gives a method, how it scores a cell, and what the report shows of it."""

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
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "worst_class",
    "calibration_error",
    "brier",
    "accuracy_surest_50",
    "accuracy_surest_80",
    "share_at_95",
]
"""What methods are compared by; :mod:`orchestrator.analysis.metrics` computes them."""


def support_passes(method: Method, settings: Any, support_size: int, test_size: int) -> TowerPasses:
    """Return the images that a method takes through the tower to learn from a labelled support."""
    return method.tower_passes(support_size, settings)


@dataclass(frozen=True)
class GroupMean:
    """A mean of the accuracies of class groups: its name in tables, and ``of(*accuracies)``, in the groups' order."""

    name: str
    of: Callable[..., float]


@dataclass(frozen=True)
class Track:
    """One way to give methods the images of a target and to score what they make of them.

    Attributes:
        name: the value of ``track`` in grid files, cells and results.
        title: the name for people.
        method_track: a method can be measured on this track if it has this name among its ``tracks``; its
            ``track_defaults`` of that name apply. Empty for the track's own name.
        gives_support: true if a method gets a labelled support, k images a class. False if it gets the target's test
            images without labels; such a track has seeds, but no k.
        support_split: ``support_split(protocol)`` is the split of the target that supports are drawn from.
        support_draw: ``support_draw(protocol)``, as ``draw`` of :func:`bolt.task.support.draw_support`.
        base_classes: ``base_classes(C)`` is how many of the target's C classes, from the first on, a method is adapted
            to. It has to classify the remaining classes by their names. ``None``: it is adapted to all classes.
        class_groups: names of the groups of the target's classes that are scored one by one, after the datasets.
        group_mean: how the groups' accuracies become one accuracy, which verdicts and means over datasets use.
        scores_variants: whether a block may say in ``evaluate_on`` which datasets are scored instead of the target.
        own_words: whether the datasets in ``evaluate_on`` are other tasks, which are scored by their own class words.
            Methods must then be able to classify classes that they were not adapted to.
        averages_target: whether a mean over test sets counts the target itself. False: the mean is over the other test
            sets alone.
        scored_after_epochs: whether the classifier is scored after every epoch of training too.
        tower_passes: ``tower_passes(method, settings, support_size, test_size)`` -> images through the tower in one
            cell, from which plans estimate hours.
        published_shots: ``published_shots(k)`` is the k under which the paper prints a cell's accuracy; ``None`` if it
            prints none.
        metric: what methods are compared by unless a person asks for another metric.
        lead_tables: the tables that the report shows first, by their names in the report's registry.
        named_in_titles: whether titles name the track even where all of a report is on this one track.
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
        """Whether a method is scored on classes that it was not adapted to."""
        return self.base_classes is not None or self.own_words

    def takes(self, method: Method) -> bool:
        """Whether a method can be measured on this track."""
        if self.meets_new_classes and not method.names_new_classes:
            return False
        return (self.method_track or self.name) in method.tracks

    def configure(self, method: Method, changes: Mapping[str, Any]) -> Any:
        """Return the method's settings with its defaults on this track; raises what :meth:`Method.configure` raises."""
        return method.configure(changes, self.method_track or self.name)
