"""BOLT: a basis of the other tasks' singular directions, and a few coefficients trained on it.

Per weight matrix, the leading directions of every source's task vector are orthogonalised together; the sources'
mean coefficients in that basis, times a scale chosen on the support, are the start
(:mod:`bolt.methods.common.pooled_start`); the coefficients alone are trained. ``bolt_pooled`` stops at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from bolt.methods.base import Method, TowerPasses, register
from bolt.methods.common.pooled_start import PooledStart, PooledStartSettings, pooled_start
from bolt.methods.common.scale_selection import images_scored
from bolt.spectral.spectral_linear import merge_coefficients
from bolt.task.task import Adapted, Task, cosine_classifier
from bolt.training.adaptation import adapted, train
from bolt.training.loop import ReferenceQuirks, TrainingRecipe
from bolt.training.trainable import Trainable


@dataclass(frozen=True)
class BoltPooledSettings(PooledStartSettings):
    """The start's settings."""


@dataclass(frozen=True)
class BoltSettings(TrainingRecipe, PooledStartSettings):
    """The start's settings and the training recipe, whose defaults are the paper's."""

    def __post_init__(self) -> None:
        TrainingRecipe.__post_init__(self)
        PooledStartSettings.__post_init__(self)


def adapt_pooled(task: Task, settings: BoltPooledSettings) -> Adapted:
    """The start alone: nothing is trained."""
    start = pooled_start(task, settings)
    return Adapted(
        classify=cosine_classifier(task.head_CD, task.backbone.logit_scale),
        tower=merge_coefficients(start.tower),
        details=start.details,
        coefficients=_pooled(start),
        change=start.change(),
    )


def adapt(task: Task, settings: BoltSettings) -> Adapted:
    """The start, then its coefficients trained: on the support or, at test time, on what the start is sure of."""
    start = pooled_start(task, settings)
    trainable = Trainable(
        encode=start.tower,
        parameters=list(start.coefficients.values()),
        current=lambda: merge_coefficients(start.tower),
    )
    train(
        task,
        trainable,
        settings,
        start=None if task.unlabelled is None else merge_coefficients(start.tower),
        quirks=ReferenceQuirks(late_schedule=task.protocol.schedule_offset),
    )
    trained = {f"trained/{name}": value.detach().clone() for name, value in start.coefficients.items()}
    return adapted(task, trainable, details=start.details, coefficients=_pooled(start) | trained, change=start.change())


def _pooled(start: PooledStart) -> dict[str, Tensor]:
    return {f"pooled/{name}": value for name, value in start.pooled.items()}


def _candidates(settings: BoltSettings) -> Sequence[BoltSettings]:
    """The learning rates of the authors' sweep, 1, 5 and 10 times the paper's."""
    return [replace(settings, learning_rate=factor * settings.learning_rate) for factor in (1, 5, 10)]


def _tower_passes(support_size: int, settings: PooledStartSettings) -> TowerPasses:
    epochs = settings.epochs if isinstance(settings, BoltSettings) else 0
    return TowerPasses(forward=images_scored(settings.alphas, support_size), training=epochs * support_size)


PAPER = "https://github.com/jhpark-ai/BOLT"
register(
    Method(
        name="bolt",
        title="BOLT",
        paper=PAPER,
        settings_class=BoltSettings,
        adapt=adapt,
        tracks=frozenset({"fewshot", "ood", "tta", "meta"}),
        track_defaults={"tta": {"epochs": 1, "batch_size": 32, "alpha_by": "entropy"}},
        candidates=_candidates,
        uses_sources=True,
        uses_mean_task_vector=True,
        changes_tower=True,
        tower_passes=_tower_passes,
        test_settings={"top_k": 2, "alphas": (1.0, 3.0), "epochs": 2, "batch_size": 8},
    )
)
register(
    Method(
        name="bolt_pooled",
        title="BOLT, training-free",
        paper=PAPER,
        settings_class=BoltPooledSettings,
        adapt=adapt_pooled,
        tracks=frozenset({"fewshot", "ood", "tta"}),
        track_defaults={"tta": {"alpha_by": "entropy"}},
        uses_sources=True,
        uses_mean_task_vector=True,
        changes_tower=True,
        tower_passes=_tower_passes,
        test_settings={"top_k": 2, "alphas": (1.0, 3.0)},
    )
)
