"""CLIPFit: trains the last biases of the text blocks and the image tower's layer norms (Li et al., EMNLP 2024).

Paper: arXiv:2409.16718. In the text tower, the bias of every block's second feed-forward layer is trained. In the image
tower, the gain and the bias of every layer norm are trained. Together these are 12 x 512 + 26 x 1,536 = 46,080 numbers
in ViT-B. As in :mod:`bolt.methods.kgcoop`, a distance to the class vectors w_c of the frozen text tower is added to the
cross-entropy::

    loss = CE(scale f t_c) + 8 (1 - mean_c cos(t_c, w_c))

t_c is the class vector of the trained text tower. t_c and w_c are computed from the same prompt, the task's first
template. The optimiser is SGD with rate 2e-3, momentum 0.9 and an L2 penalty of 5e-4 inside the gradient, which also
draws the gains from 1 towards 0. Training takes 100 epochs of batches of 32; on ImageNet and Food-101 it takes 10
(preset ``imagenet``). What differs from the official code:

- The weight of the distance is 8 everywhere, the official value for base to new classes. For few-shot the official
  weight is 2 or 8, by dataset.
- The last batch of an epoch is kept if it is smaller, and numbers are float32.
- In a ResNet the official code trains the text biases alone, because it finds layer norms by their names. Here a tower
  without named tensors is refused.

Shape legend: B batch, S image side, C classes, D joint embedding width.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.tensor_names import layer_norm_names
from bolt.clip.text_tower import TextTower
from bolt.methods.base import register_tower_training
from bolt.methods.common.coop_training import CoopTrainingSettings, coop_options
from bolt.methods.common.prompts import TrainedText
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train, trainable_tower
from bolt.training.loop import cross_entropy
from bolt.util.ranges import NotNegative


@dataclass(frozen=True)
class ClipFitSettings(CoopTrainingSettings):
    """The training recipe and the weight of the distance; the defaults are the official ones for base to new classes.

    Attributes:
        epochs, batch_size, learning_rate, weight_decay: hyperparameters of SGD with momentum. The weight decay
            is an L2 penalty.
        distance_weight: weight of ``1 - mean cos`` to the class vectors of the frozen text tower.
    """

    epochs: int = 100
    distance_weight: NotNegative = 8.0


def with_trained_biases(frozen: TextTower) -> TextTower:
    """Return a copy of a text tower in which the biases of the second feed-forward layers are trained."""
    tower = frozen.copy()
    for block in tower.blocks:
        linear = block.get_submodule("c_proj")
        linear.bias = nn.Parameter(linear.get_parameter("bias").detach().clone())
    return tower


def trainable(task: Task, settings: ClipFitSettings) -> tuple[Trainable, TrainedText]:
    """Return both towers with their loss as one trainable model, and the text tower alone.

    Raises ``UnsupportedTower`` for an image tower without named tensors, and for a text tower that is not causal.
    """
    frozen = task.backbone.tower
    frozen.tensor_paths()  # refuses a tower whose tensors have no names
    tower = frozen.copy(trainable=layer_norm_names(frozen.state_dict_open_clip()))
    text = TrainedText(task, with_trained_biases(task.backbone.text_tower))
    teacher_CD = text.embed_classes(task.class_text.class_names)

    def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        head_CD = text.head()
        distance = 1 - F.cosine_similarity(head_CD, teacher_CD, dim=-1).mean()
        logits_BC = text.classifier_of(head_CD)(tower(images_B3SS))
        return cross_entropy(logits_BC, labels_B) + settings.distance_weight * distance

    return replace(text.joined(trainable_tower(tower)), loss=loss), text


@register_tower_training(
    title="CLIPFit",
    palette=54,
    summary="trains biases of the text tower and the image tower's layer norms",
    paper="https://arxiv.org/abs/2409.16718",
    presets={"imagenet": {"epochs": 10}},
    trains_text=lambda settings: True,
    tower_passes=lambda support_size, settings: settings.passes(settings.epochs, support_size),
    training_forwards=2.01,
)
def adapt(task: Task, settings: ClipFitSettings) -> Adapted:
    """Train the biases and the layer norms on the support."""
    model, _ = trainable(task, settings)
    recipe = settings.recipe(settings.epochs)
    return train(task, model, recipe, **coop_options(recipe))
