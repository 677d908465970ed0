"""A meta-learned start: the whole tower is learned on the other datasets' images, then fine-tuned on the support.

The start (:mod:`bolt.training.meta`) comes with the task. From there everything is fine-tuned: the tower, and a copy of
the zero-shot head that, as in meta-training, holds the logit scale. Rates, epochs and batches are those of the BOLT
authors' MAML comparison; the schedule is the one all methods share.

Shape legend: B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from bolt.methods.base import Method, TowerPasses, register
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import adapted, train, trainable_tower
from bolt.training.loop import TrainingRecipe
from bolt.training.meta_recipe import MetaRecipe, Variant

_PLAIN = MetaRecipe()


@dataclass(frozen=True)
class MetaInitSettings(TrainingRecipe):
    """The recipe of the fine-tuning and, as ``variant`` and ``meta_...``, that of the start.

    Attributes:
        variant, meta_steps, ...: see :class:`bolt.training.meta_recipe.MetaRecipe`.
    """

    learning_rate: float = 5e-5
    variant: Variant = _PLAIN.variant
    meta_steps: int = _PLAIN.steps
    meta_tasks_per_step: int = _PLAIN.tasks_per_step
    meta_support: int = _PLAIN.support
    meta_query: int = _PLAIN.query
    meta_inner_steps: int = _PLAIN.inner_steps
    meta_inner_rate: float = _PLAIN.inner_rate
    meta_outer_rate: float = _PLAIN.outer_rate
    meta_clip_norm: float = _PLAIN.clip_norm

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            meta_recipe(self)
        except ValueError as error:
            raise ValueError(f"of the meta-learned start: {error}") from None


def meta_recipe(settings: MetaInitSettings) -> MetaRecipe:
    """The recipe of the start that these settings adapt from."""
    names = [field.name for field in fields(MetaRecipe) if field.name != "variant"]
    return MetaRecipe(settings.variant, **{name: getattr(settings, f"meta_{name}") for name in names})


def adapt(task: Task, settings: MetaInitSettings) -> Adapted:
    """Fine-tune tower and head from the meta-learned start. Raises ``ValueError`` for a task without one."""
    if task.initial is None:
        raise ValueError("meta_init starts from a meta-learned tower, and this task has none")
    device = task.backbone.device
    tower = task.backbone.tower.copy(trainable=task.initial)
    tower.load_open_clip(task.initial)
    head_CD = (task.backbone.logit_scale * task.head_CD.to(device)).requires_grad_()
    trainable = trainable_tower(tower, head_CD, classify=LinearClassifier(head_CD))
    train(task, trainable, settings)
    head_CD.requires_grad_(False)
    return adapted(task, trainable)


register(
    Method(
        name="meta_init",
        version=2,
        title="Meta-learned start (MAML)",
        paper="https://arxiv.org/abs/1703.03400",
        settings_class=MetaInitSettings,
        adapt=adapt,
        tracks=frozenset({"fewshot", "meta"}),
        presets={
            "first_order": {"variant": "first_order"},
            # The outer step of Nichol et al. before they anneal it, and their inner steps on few-shot ImageNet.
            "reptile": {"variant": "reptile", "meta_inner_steps": 8, "meta_outer_rate": 1.0},
        },
        uses_sources=True,
        source_directions=lambda settings, width, sources: 0,
        meta_recipe=meta_recipe,
        changes_tower=True,
        tower_passes=lambda support_size, settings: TowerPasses(training=settings.epochs * support_size),
        test_settings={"epochs": 2, "batch_size": 8, "meta_steps": 2, "meta_support": 8, "meta_query": 8},
    )
)
