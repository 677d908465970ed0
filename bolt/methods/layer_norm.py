"""LayerNorm adaptation at test time: trains the gains and biases of the image tower's layer norms on unlabelled images.

Tent does the same with batch norms at test time (Wang et al., 2021, arXiv:2006.10726); a vision transformer has layer
norms instead. A layer norm keeps no batch statistics, so only its gains and biases are adapted: 39,936 parameters in
ViT-B, 102,400 in ViT-L/14. The text head stays frozen. The loss is UFM, for which confident predictions serve as labels
(:mod:`bolt.training.test_time`).

The recipe is the BOLT authors': AdamW with learning rate 1e-3, without weight decay or warm-up, one epoch, last state
kept.
"""

from dataclasses import dataclass

from bolt.clip.tensor_names import layer_norm_names
from bolt.methods.base import TowerPasses, register
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import train, trainable_tower
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class LayerNormSettings(TrainingRecipe):
    """The training recipe with the BOLT authors' defaults. ``batch_size`` counts labelled and unlabelled images.

    The labelled images are test images whose predictions serve as labels, see :mod:`bolt.training.test_time`.
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.0


@register(
    version=2,
    title="LayerNorm",
    palette=10,
    summary="trains the layer norms on unlabelled images",
    paper="https://arxiv.org/abs/2006.10726",
    tracks=frozenset({"tta"}),
    changes_tower=True,
    # Half of a batch is trusted images, whose pseudo-labels are fixed. All images are trained on in a strong view. The
    # others are also encoded in a weak view, without a gradient.
    tower_passes=lambda size, settings: TowerPasses(settings.epochs * size, training=2 * settings.epochs * size),
    training_forwards=2.01,
)
def adapt(task: Task, settings: LayerNormSettings) -> Adapted:
    """Train the layer norms on the unlabelled test images. Raises ``ValueError`` if the task has none."""
    _ = task.test_images  # raises the error; without it, the method would train on labelled images
    frozen = task.backbone.tower
    trainable = trainable_tower(frozen.copy(trainable=layer_norm_names(frozen.state_dict_open_clip())))
    return train(task, trainable, settings)
