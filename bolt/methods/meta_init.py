"""Meta-learned start: the image tower is meta-learned on the other datasets' images, then fine-tuned on the support.

:mod:`bolt.training.meta` learns the start by MAML (Finn et al., 2017, arXiv:1703.03400), by its first-order form or by
Reptile (Nichol et al., 2018); the method gets the start with the task. Fine-tuning trains the whole tower and, as in
meta-training, a copy of the zero-shot head that is multiplied by the logit scale. Learning rates, epochs and batch size
are as in the BOLT authors' MAML comparison. The schedule is the default one here, a warm-up and a cosine.

Shape legend: B batch, C classes, D joint embedding width.
"""

from dataclasses import dataclass, fields

from bolt.methods.base import Idle, register_tower_training
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import train, trainable_tower
from bolt.training.loop import TrainingRecipe
from bolt.training.meta import MetaRecipe, Variant
from bolt.util.ranges import AtLeast1, NotNegative, Positive, Range

_DEFAULTS = MetaRecipe()


@dataclass(frozen=True)
class MetaInitSettings(TrainingRecipe):
    """The recipe of the fine-tuning, and the recipe of the start (``variant`` and the fields ``meta_...``).

    Attributes:
        variant, meta_steps, ...: the fields of :class:`bolt.training.meta.MetaRecipe`; all but ``variant`` have
            the prefix ``meta_``.
    """

    learning_rate: float = 5e-5
    variant: Variant = _DEFAULTS.variant
    meta_steps: AtLeast1 = _DEFAULTS.steps
    meta_tasks_per_step: AtLeast1 = _DEFAULTS.tasks_per_step
    meta_support: AtLeast1 = _DEFAULTS.support
    meta_query: AtLeast1 = _DEFAULTS.query
    meta_inner_steps: AtLeast1 = _DEFAULTS.inner_steps
    meta_inner_rate: Positive = _DEFAULTS.inner_rate
    meta_outer_rate: Positive = _DEFAULTS.outer_rate
    meta_clip_norm: NotNegative = _DEFAULTS.clip_norm


def meta_recipe(settings: MetaInitSettings) -> MetaRecipe:
    """Return the recipe of the meta-learned start that these settings ask for."""
    names = [field.name for field in fields(MetaRecipe) if field.name != "variant"]
    return MetaRecipe(settings.variant, **{name: getattr(settings, f"meta_{name}") for name in names})


@register_tower_training(
    version=2,
    title="Meta-learned start",
    palette=7,
    summary="fine-tunes the tower from a meta-learned start",
    paper="https://arxiv.org/abs/1703.03400",
    tracks=frozenset({"fewshot", "meta"}),
    presets={
        "first_order": {"variant": "first_order"},
        # Nichol et al.: their outer rate before annealing, and their number of inner steps on few-shot ImageNet.
        "reptile": {"variant": "reptile", "meta_inner_steps": 8, "meta_outer_rate": 1.0},
    },
    uses_sources=True,
    meta_recipe=meta_recipe,
    names_new_classes=False,
    idle=(Idle(("meta_clip_norm",), {"variant": Range("maml or first_order", lambda v: v != "reptile")}),),
)
def adapt(task: Task, settings: MetaInitSettings) -> Adapted:
    """Fine-tune tower and head from the meta-learned start. Raises ``ValueError`` if the task has no such start."""
    if task.initial is None:
        raise ValueError("meta_init starts from a meta-learned tower, and this task has none")
    tower = task.backbone.tower.copy(trainable=task.initial)
    tower.load_open_clip(task.initial)
    head_CD = (task.backbone.logit_scale * task.head_CD.to(task.backbone.device)).requires_grad_()
    trainable = trainable_tower(tower, head_CD, classify=LinearClassifier(head_CD))
    return train(task, trainable, settings)
