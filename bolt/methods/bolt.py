"""BOLT: makes a basis of the sources' singular directions, and trains only a few coefficients in this basis.

Code of the authors: https://github.com/jhpark-ai/BOLT. Two methods are registered here. ``bolt_pooled`` is
training-free:

1. For each weight matrix, the leading singular directions of every source's task vector are made orthonormal together.
2. The sources' coefficients in that basis are averaged, and multiplied by a scale alpha chosen on the support
   (:mod:`bolt.methods.common.pooled_start`).

``bolt`` starts from the result of ``bolt_pooled`` and trains the coefficients; everything else stays frozen. Defaults
are the paper's. What differs from the authors' code:

- Coefficients are signed. The switch ``sigma_sign: relu`` clamps them at zero, as the authors' forward pass does.
- Learning rates are set before each step. The switch ``schedule_offset`` sets them one step late, as the authors do.
- Alpha is chosen on un-augmented support images, or at test time on test images without their labels. The switches
  ``alpha_views`` and ``tta_alpha`` choose it as the authors do.
- With few sources the basis has fewer columns. The switch ``task_count_basis: padded`` adds random directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from bolt.methods.base import Idle, TowerPasses, register, register_tower_training
from bolt.methods.common.pooled_start import PooledStart, PooledStartSettings, pooled_start
from bolt.methods.common.scale_selection import images_scored
from bolt.spectral.spectral_linear import merge_coefficients
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train
from bolt.training.loop import ReferenceDeviations, TrainingRecipe
from bolt.util.ranges import Range


@dataclass(frozen=True)
class BoltSettings(TrainingRecipe, PooledStartSettings):
    """The settings of the pooled start and the training recipe; the defaults are the paper's."""


def adapt_pooled(task: Task, settings: PooledStartSettings) -> Adapted:
    """Return the pooled start; nothing is trained."""
    start = pooled_start(task, settings)
    return Adapted(
        classify=task.text_head,
        tower=merge_coefficients(start.tower),
        details=start.details,
        coefficients=_pooled(start),
        change=start.change(),
        source_key=(settings, start.unscaled.sources, start.alpha.scale, start.unscaled.recipe.seed),
    )


def adapt(task: Task, settings: BoltSettings) -> Adapted:
    """Train the coefficients from the pooled start, on the support or, at test time, on the unlabelled images.

    At test time, the test images whose predictions serve as labels are selected by the predictions of the pooled start,
    not of the frozen tower.

    Raises ``ValueError`` if coefficients are clamped at zero and none starts above zero, because no step would move
    them.
    """
    start = pooled_start(task, settings)
    if start.sign == "relu" and not any((value > 0).any() for value in start.coefficients.values()):
        raise ValueError(
            f"at alpha {start.alpha.scale:g} all coefficients are at or below zero, where sign relu gives them no "
            "gradient; set alphas above 0, or sign free"
        )
    trainable = Trainable(start.tower, [*start.coefficients.values()], lambda: merge_coefficients(start.tower))
    before = None if task.unlabelled is None else merge_coefficients(start.tower)
    deviations = ReferenceDeviations(late_schedule=task.protocol.schedule_offset, equal_batches=True)
    result = train(task, trainable, settings, start=before, deviations=deviations)
    trained = {f"trained/{name}": value.detach().clone() for name, value in start.coefficients.items()}
    return replace(result, details=start.details, coefficients=_pooled(start) | trained, change=start.change())


def _pooled(start: PooledStart) -> dict[str, Tensor]:
    return {f"pooled/{name}": value for name, value in start.unscaled.coefficients.items()}


def _candidates(settings: BoltSettings) -> Sequence[BoltSettings]:
    """Return the authors' sweep: learning rates of 1, 5 and 10 times the given one."""
    return [replace(settings, learning_rate=factor * settings.learning_rate) for factor in (1, 5, 10)]


def _tower_passes(support_size: int, settings: PooledStartSettings) -> TowerPasses:
    epochs = settings.epochs if isinstance(settings, BoltSettings) else 0
    return TowerPasses(forward=images_scored(settings.alphas, support_size), training=epochs * support_size)


PAPER = "https://github.com/jhpark-ai/BOLT"
_IDLE = (
    Idle(("whitening_epsilon",), {"orthogonalisation": "whitening"}),
    Idle(("sign",), {"sigma_sign": "free"}, noted=True),
    Idle(("alpha_by",), {"track": Range("one with labels", lambda track: track != "tta")}),
)
register_tower_training(
    name="bolt",
    title="BOLT",
    summary="trains coefficients of an orthonormal basis of the sources' singular directions",
    paper=PAPER,
    adapt=adapt,
    tracks=frozenset({"fewshot", "ood", "tta", "meta"}),
    track_defaults={"tta": {"epochs": 1, "batch_size": 32, "alpha_by": "mutual_information"}},
    candidates=_candidates,
    uses_sources=True,
    uses_mean_task_vector=True,
    tower_passes=_tower_passes,
    training_forwards=2.26,
    idle=_IDLE,
)
register(
    name="bolt_pooled",
    title="BOLT (training-free)",
    summary="pools coefficients of an orthonormal basis of the sources' singular directions; trains nothing",
    paper=PAPER,
    adapt=adapt_pooled,
    tracks=frozenset({"fewshot", "ood", "tta"}),
    track_defaults={"tta": {"alpha_by": "mutual_information"}},
    uses_sources=True,
    uses_mean_task_vector=True,
    changes_tower=True,
    names_new_classes=True,
    tower_passes=_tower_passes,
    idle=_IDLE,
)
