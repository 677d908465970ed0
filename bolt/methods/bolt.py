"""BOLT: makes a basis of the sources' singular directions, and trains only a few coefficients in this basis.

Code of the authors: https://github.com/jhpark-ai/BOLT. Two methods are registered here. ``bolt_pooled`` is
training-free:

1. For each weight matrix, the leading singular directions of every source's task vector are made orthonormal together.
2. The sources' coefficients in that basis are averaged, and multiplied by a scale alpha chosen on the support. The
   result is the matrix's update.

``bolt`` starts from the result of ``bolt_pooled`` and trains the coefficients; everything else stays frozen. Defaults
are the paper's. What differs from the authors' code:

- Coefficients are signed. The switch ``sigma_sign: relu`` clamps them at zero, as the authors' forward pass does.
- Learning rates are set before each step. The switch ``schedule_offset`` sets them one step late, as the authors do.
- Alpha is chosen on un-augmented support images, or at test time on test images without their labels. The switches
  ``alpha_views`` and ``tta_alpha`` choose it as the authors do.
- With few sources the basis has fewer columns. The switch ``task_count_basis: padded`` adds random directions.

Shape legend: r columns of a matrix's basis, each with one coefficient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from bolt.clip.tensor_names import MATRIX_KINDS, MatrixKinds, matrix_names
from bolt.clip.tower import ImageTower
from bolt.methods.base import Idle, TowerPasses, register, register_tower_training
from bolt.methods.common.merging import mean_task_vectors, required_sources, with_update
from bolt.methods.common.scale_selection import ScaleBy, ScaleChoice, choose_scale, images_scored
from bolt.protocol import ADDED_LATER
from bolt.spectral.bases import Basis, diagonal_coefficients
from bolt.spectral.sources import BasisOf, BasisRecipe, Sources, build_basis
from bolt.spectral.spectral_change import SpectralChange
from bolt.spectral.spectral_linear import Sign, attach_coefficients, merge_coefficients
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train
from bolt.training.loop import ReferenceDeviations, TrainingRecipe
from bolt.util.ranges import NOT_EMPTY, AtLeast1, Checked, Positive, Range

PAPER = "https://github.com/jhpark-ai/BOLT"


@dataclass(frozen=True)
class PooledStartSettings(Checked):
    """The settings of the pooled start.

    Attributes:
        top_k: singular directions per source and matrix; fewer if the matrix is too small for all sources.
        alphas: candidate scales of the pooled coefficients. The best scale is used; ties go to the smallest. A single
            candidate is used without scoring it.
        alpha_by: how the best scale is found. ``support``: by the accuracy on the labelled support.
            ``mutual_information``: by the mutual information of image and predicted class
            (:mod:`bolt.methods.common.scale_selection`). The test-time track, which has no labels, ignores this
            setting: it uses the mutual information, or the oracle under the switch ``tta_alpha: test_labels``.
        orthogonalisation: how the stacked directions become a basis: by their ``polar`` factors, or by ``whitening``
            with ``whitening_epsilon``, the paper's second form. The two forms differ if sources resemble each other.
        pooling: each coefficient is the ``mean``, the ``sum`` or the ``max`` of the sources' coefficients.
        sign: coefficients are ``free``, or clamped at zero (``relu``). The switch ``sigma_sign: relu`` overrides this.
        matrices: the kinds of weight matrices that get a basis.
        other_tensors: the values of the tensors that are not weight matrices. ``pretrained``: they stay the same.
            ``averaged``: the sources' mean task vector is added to them, unscaled. They are never trained.
        padded_sources: a number of sources, used under the switch ``task_count_basis: padded`` only. Every basis then
            has as many columns as it would have with this number of sources. If the task has as many sources or
            more, the switch changes nothing.
        basis: the columns of the basis: directions of the ``sources``, the leading singular directions of the
            ``pretrained`` weights, their trailing directions (``pretrained_trailing``), or ``random`` orthonormal
            directions, drawn with the task's seed. All four have equally many columns, and the sources' coefficients
            are pooled in the same way. The last three are controls.
    """

    top_k: AtLeast1 = 12
    alphas: Annotated[tuple[float, ...], NOT_EMPTY] = (1.0, 3.0, 5.0, 7.0, 10.0)
    alpha_by: ScaleBy = "support"
    orthogonalisation: Literal["polar", "whitening"] = "polar"
    whitening_epsilon: Positive = 1e-6
    pooling: Literal["mean", "sum", "max"] = "mean"
    sign: Sign = "free"
    matrices: MatrixKinds = tuple(MATRIX_KINDS)
    other_tensors: Literal["pretrained", "averaged"] = "pretrained"
    padded_sources: AtLeast1 = 16
    basis: BasisOf = field(default="sources", metadata=ADDED_LATER)


@dataclass(frozen=True)
class BoltSettings(TrainingRecipe, PooledStartSettings):
    """The settings of the pooled start and the training recipe; the defaults are the paper's."""


@dataclass(frozen=True)
class PooledStart:
    """A tower whose trainable coefficients start at alpha times the pooled coefficients.

    Attributes:
        tower: the tower, with coefficients on its matrices.
        coefficients: open_clip matrix name -> the trainable coefficients, (r,).
        unscaled: the bases, and the pooled coefficients before they are multiplied by alpha.
        alpha: the scale, and how it was chosen.
        sign: whether coefficients are clamped at zero.
    """

    tower: ImageTower
    coefficients: Mapping[str, nn.Parameter]
    unscaled: SpectralChange
    alpha: ScaleChoice
    sign: Sign

    @property
    def details(self) -> dict[str, float | int | str]:
        """The chosen scale and the number of coefficients, for :class:`bolt.task.task.Adapted`."""
        count = sum(coefficient.numel() for coefficient in self.coefficients.values())
        return {**self.alpha.details, "coefficients": count, "matrices": len(self.coefficients)}

    def change(self) -> SpectralChange:
        """Return the tower's change under the current coefficients."""
        free = {name: coefficient.detach().clone() for name, coefficient in self.coefficients.items()}
        used = {name: s.relu() for name, s in free.items()} if self.sign == "relu" else free
        return replace(self.unscaled, coefficients=used)


def pooled_start(task: Task, settings: PooledStartSettings) -> PooledStart:
    """Attach the sources' bases to the tower, and choose the scale of the pooled coefficients.

    Raises ``ValueError`` if there are no sources, or if their task vectors are all zero or not finite.
    """
    sources, tower = required_sources(task), task.backbone.tower
    state = tower.state_dict_open_clip()
    matrices = matrix_names(state)
    recipe = _recipe(task, settings, len(sources.names))
    built = {name: build_basis(sources, recipe, name, state[name]) for name in matrix_names(state, settings.matrices)}
    bases = {name: each.basis for name, each in built.items()}
    start = {name: each.pooled for name, each in built.items()}
    if settings.pooling == "sum":
        start = {name: mean * len(sources.names) for name, mean in start.items()}
    elif settings.pooling == "max":
        start = _largest_coefficients(sources, bases)
    if settings.other_tensors == "averaged":
        tower = with_update(tower, mean_task_vectors(sources, [name for name in state if name not in matrices]))
    sign: Sign = "relu" if "relu" in (settings.sign, task.protocol.sigma_sign) else "free"
    adapted, coefficients = attach_coefficients(tower, bases, start, sign)
    if not coefficients:
        raise ValueError("every task vector of the sources is zero, so no basis can be built from them")
    pooled = {name: coefficient.detach().clone() for name, coefficient in coefficients.items()}
    with_columns = {name: bases[name] for name in pooled}
    unscaled = SpectralChange(pooled, with_columns, recipe, sources.names, sources.file_digests())

    def tower_at(alpha: float) -> ImageTower:
        with torch.no_grad():
            for name, coefficient in coefficients.items():
                torch.mul(pooled[name], alpha, out=coefficient)
        return adapted

    choice = choose_scale(task, settings.alphas, lambda alpha: merge_coefficients(tower_at(alpha)), settings.alpha_by)
    return PooledStart(tower_at(choice.scale), coefficients, unscaled, choice, sign)


def _recipe(task: Task, settings: PooledStartSettings, count: int) -> BasisRecipe:
    room = max(settings.padded_sources, count) if task.protocol.task_count_basis == "padded" else count
    seed = task.seed if settings.basis == "random" else 0
    return BasisRecipe(
        settings.top_k, room, settings.orthogonalisation, settings.whitening_epsilon, settings.basis, seed
    )


def _largest_coefficients(sources: Sources, bases: Mapping[str, Basis]) -> dict[str, Tensor]:
    """Return the coefficients (r,) of each matrix: each is the largest of the sources' signed coefficients."""
    largest: dict[str, Tensor] = {}
    for source in sources.names:
        task_vector = sources.task_vector(source)
        for name, basis in bases.items():
            own = diagonal_coefficients(basis, task_vector[name])
            largest[name] = torch.maximum(largest[name], own) if name in largest else own
    return largest


def _tower_passes(support_size: int, settings: PooledStartSettings) -> TowerPasses:
    epochs = settings.epochs if isinstance(settings, BoltSettings) else 0
    return TowerPasses(forward=images_scored(settings.alphas, support_size), training=epochs * support_size)


_IDLE = (
    Idle(("whitening_epsilon",), {"orthogonalisation": "whitening"}),
    Idle(("sign",), {"sigma_sign": "free"}, noted=True),
    Idle(("alpha_by",), {"track": Range("one with labels", lambda track: track != "tta")}),
)


@register_tower_training(
    title="BOLT",
    palette=1,
    summary="trains coefficients of an orthonormal basis of the sources' singular directions",
    paper=PAPER,
    tracks=frozenset({"fewshot", "ood", "tta", "meta"}),
    track_defaults={"tta": {"epochs": 1, "batch_size": 32, "alpha_by": "mutual_information"}},
    # The authors' sweep.
    candidates=lambda settings: [replace(settings, learning_rate=x * settings.learning_rate) for x in (1, 5, 10)],
    uses_sources=True,
    tower_passes=_tower_passes,
    training_forwards=2.26,
    idle=_IDLE,
)
def adapt(task: Task, settings: BoltSettings) -> Adapted:
    """Train the coefficients from the pooled start, on the support or, at test time, on the unlabelled images.

    At test time, the most confident predictions of the pooled start, not of the frozen tower, serve as labels.

    Raises ``ValueError`` if coefficients are clamped at zero and none starts above zero, because no step would move
    them.
    """
    start = pooled_start(task, settings)
    if start.sign == "relu" and not any((value > 0).any() for value in start.coefficients.values()):
        raise ValueError(
            f"at alpha {start.alpha.scale:g} no coefficient is above zero, so with sign=relu none gets a gradient; "
            "set alphas above 0, or sign=free"
        )
    trainable = Trainable(start.tower, [*start.coefficients.values()], lambda: merge_coefficients(start.tower))
    before = None if task.unlabelled is None else merge_coefficients(start.tower)
    deviations = ReferenceDeviations(late_schedule=task.protocol.schedule_offset, equal_batches=True)
    result = train(task, trainable, settings, start=before, deviations=deviations)
    trained = {f"trained/{name}": value.detach().clone() for name, value in start.coefficients.items()}
    return replace(result, details=start.details, coefficients=_pooled(start) | trained, change=start.change())


@register(
    name="bolt_pooled",
    title="BOLT (training-free)",
    palette=6,
    summary="pools coefficients of an orthonormal basis of the sources' singular directions; trains nothing",
    paper=PAPER,
    tracks=frozenset({"fewshot", "ood", "tta"}),
    track_defaults={"tta": {"alpha_by": "mutual_information"}},
    uses_sources=True,
    changes_tower=True,
    names_new_classes=True,
    tower_passes=_tower_passes,
    idle=_IDLE,
)
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


def _pooled(start: PooledStart) -> dict[str, Tensor]:
    return {f"pooled/{name}": value for name, value in start.unscaled.coefficients.items()}
