"""Full fine-tuning: every number of the image tower, trained on the support. The upper reference of what can be moved.

The recipe is the sources' own (AdamW at 1e-5 with weight decay 0.1, clipped gradients, the frozen text head), for the
shared 20 epochs with a warm-up over a tenth of them. The BOLT authors adapt their meta-learned tower at 5e-5 instead,
the head with it (``learning_rate``, ``weight_decay`` and ``train_head`` here).

Shape legend: C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

from bolt.methods.base import Method, TowerPasses, register
from bolt.task.task import Adapted, Task, cosine_classifier
from bolt.training.adaptation import adapted, train, trainable_tower
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class FullFinetuneSettings(TrainingRecipe):
    """Attributes:
    train_head: whether the text head's class embeddings are trained too, starting as they are.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.1
    train_head: bool = False


def adapt(task: Task, settings: FullFinetuneSettings) -> Adapted:
    """Train a copy of the tower and, if asked to, of the head."""
    tower = task.backbone.tower.copy(task.backbone.tower.state_dict_open_clip())
    head_CD = task.head_CD.to(task.backbone.device).clone().requires_grad_(settings.train_head)
    trainable = trainable_tower(
        tower,
        *([head_CD] if settings.train_head else []),
        classify=cosine_classifier(head_CD, task.backbone.logit_scale),
    )
    train(task, trainable, settings)
    head_CD.requires_grad_(False)
    return adapted(task, trainable)


register(
    Method(
        name="full_finetune",
        title="Full fine-tuning",
        paper="https://arxiv.org/abs/2103.00020",
        settings_class=FullFinetuneSettings,
        adapt=adapt,
        tracks=frozenset({"fewshot", "ood", "meta"}),
        changes_tower=True,
        tower_passes=lambda support_size, settings: TowerPasses(training=settings.epochs * support_size),
        test_settings={"epochs": 2, "batch_size": 8},
    )
)
