"""Full fine-tuning: every parameter of the image tower is trained on the support.

This method changes the tower most, so it is the reference for other methods. The recipe is the same as for source
models: AdamW with learning rate 1e-5 and weight decay 0.1, clipped gradients, the frozen text head. Training takes 20
epochs, with a warm-up over the first tenth of the steps. The BOLT authors fine-tune their meta-learned tower at 5e-5
and train the head too. The settings ``learning_rate``, ``weight_decay`` and ``train_head`` can do the same.

Shape legend: C classes, D joint embedding width.
"""

from dataclasses import dataclass

from bolt.methods.base import register_tower_training
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import train, trainable_tower
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class FullFinetuneSettings(TrainingRecipe):
    """The training recipe, and whether the head is trained.

    Attributes:
        train_head: also train the text head's class embeddings, starting from their values.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.1
    train_head: bool = False


@register_tower_training(
    title="Full fine-tuning",
    palette=11,
    summary="trains the whole image tower",
    paper="https://arxiv.org/abs/2103.00020",
)
def adapt(task: Task, settings: FullFinetuneSettings) -> Adapted:
    """Train a copy of the tower and, with ``train_head``, of the head."""
    tower = task.backbone.tower.copy(task.backbone.tower.state_dict_open_clip())
    head_CD = task.head_CD.to(task.backbone.device).clone().requires_grad_(settings.train_head)
    others = [head_CD] if settings.train_head else []
    trainable = trainable_tower(tower, *others, classify=CosineClassifier(head_CD, task.backbone.logit_scale))
    return train(task, trainable, settings)
