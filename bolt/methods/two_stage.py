"""2SFS: trains the layer norms first and then the classifier (Farina et al., CVPR 2025, arXiv:2503.11609).

Stage 1 trains the gains and biases of the image tower's layer norms under the frozen text head: 39,936 parameters in
ViT-B, 102,400 in ViT-L/14. Stage 2 freezes the tower and trains the classifier W, which starts at the text embeddings
and is normalised in every forward pass: ``logit_scale cos(f, W)``, C D numbers. Both stages use cross-entropy and AdamW
with learning rate 2e-4 and weight decay 1e-2, and each has its own cosine schedule. Stage 1 takes 60 % of the epochs.
Stage 2 continues with new augmented views. The official settings are the same for all datasets, so none is chosen by
labels. What differs:

- The default length is 96 epochs for every dataset. The official length is 300 steps of 32 images for each of k shots,
  which is 9,600 / C epochs for C classes: 96 epochs for a hundred classes, 960 for ten.
- The learning rate falls to zero; the official one falls to 1e-6.
- The authors also train the text tower's layer norms by default. Here the text head is frozen in stage 1.
- By default all layer norms are trained. The authors' code is meant to do that, but it visits the names of ln_pre and
  ln_post twice and so freezes these two again. ``layer_norms: in_blocks`` does the same: 36,864 parameters are left in
  ViT-B, 98,304 in ViT-L/14.

Shape legend: C classes, D joint embedding width, B batch.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Literal

from torch import Tensor
from torch.nn import functional as F

from bolt.clip.tensor_names import layer_norm_names
from bolt.methods.base import TowerPasses, register_tower_training
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train, trainable_tower
from bolt.training.loop import PlainRecipe, TrainingRecipe
from bolt.util.ranges import AtLeast2, Range


@dataclass(frozen=True)
class TwoStageSettings(PlainRecipe):
    """The recipe of both stages together, and the layer norms that stage 1 trains.

    Attributes:
        first_stage: share of the epochs in stage 1, rounded down; each stage has at least one epoch.
        layer_norms: the layer norms that stage 1 trains: ``all``, or those ``in_blocks`` as in the official code.
    """

    epochs: AtLeast2 = 96
    learning_rate: float = 2e-4
    weight_decay: float = 1e-2
    first_stage: Annotated[float, Range("in (0, 1)", lambda value: 0 < value < 1)] = 0.6
    layer_norms: Literal["all", "in_blocks"] = "all"

    @cached_property
    def stages(self) -> tuple[TrainingRecipe, TrainingRecipe]:
        """The recipes of the two stages."""
        first = max(1, min(int(self.first_stage * self.epochs), self.epochs - 1))
        both = TrainingRecipe(**{field.name: getattr(self, field.name) for field in fields(TrainingRecipe)})
        return replace(both, epochs=first), replace(both, epochs=self.epochs - first)


def _tower_passes(support_size: int, settings: TwoStageSettings) -> TowerPasses:
    first, second = settings.stages
    return TowerPasses(forward=second.epochs * support_size, training=first.epochs * support_size)


@register_tower_training(
    title="2SFS",
    palette=35,
    summary="trains the layer norms, then the classifier",
    paper="https://arxiv.org/abs/2503.11609",
    tower_passes=_tower_passes,
    training_forwards=2.01,
)
def adapt(task: Task, settings: TwoStageSettings) -> Adapted:
    """Train the layer norms, then the classifier."""
    first, second = settings.stages
    frozen = task.backbone.tower
    names = layer_norm_names(frozen.state_dict_open_clip())
    if settings.layer_norms == "in_blocks":
        names = [name for name in names if name.startswith("transformer.")]
    norms = train(task, trainable_tower(frozen.copy(trainable=names)), first)
    tower, scale = norms.tower or frozen, task.backbone.logit_scale
    head_CD = task.head_CD.to(task.backbone.device).clone().requires_grad_()
    head = Trainable(
        tower,
        [head_CD],
        current=lambda: tower,
        classify=lambda features_BD: normalised_classifier(head_CD, scale)(features_BD),
        classifier=lambda: normalised_classifier(head_CD.detach(), scale),
    )
    trained = train(_after(task, first.epochs), head, second)
    return replace(trained, trainable_parameters=norms.trainable_parameters + trained.trainable_parameters)


def normalised_classifier(head_CD: Tensor, logit_scale: float) -> CosineClassifier:
    """Return the classifier ``logit_scale * cos(feature, row of the head)``. The rows can have any length."""
    return CosineClassifier(F.normalize(head_CD, dim=-1), logit_scale)


def _after(task: Task, epochs: int) -> Task:
    """Return the task of a stage that begins after ``epochs`` epochs.

    Epoch e of the stage reads the views and the order of epoch ``epochs + e``, and reports under that number.
    """
    support = replace(
        task.support,
        pixels=lambda view, rows: task.support.pixels(view + epochs, rows),
        order=lambda epoch: task.support.order(epoch + epochs),
    )
    return replace(
        task,
        support=support,
        report=lambda epoch, metrics: task.report(epoch + epochs, metrics),
        after_epoch=lambda epoch, make: task.after_epoch(epoch + epochs, make),
    )
