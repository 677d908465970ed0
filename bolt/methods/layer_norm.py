"""LayerNorm adaptation at test time: the gains and biases of the image tower's layer norms, trained by UFM.

The counterpart, for a vision transformer, of adapting batch norms at test time (Tent, Wang et al., 2021). A layer
norm keeps no statistics of a batch, so the affine numbers are all there is to adapt: 39,936 in ViT-B, 102,400 in
ViT-L/14. The text head stays. The recipe is the BOLT authors': AdamW at 1e-3 without decay or warm-up, one epoch, the
last state kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from bolt.clip.tensor_names import layer_norm_names
from bolt.methods.base import Method, TowerPasses, register
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import adapted, train, trainable_tower
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class LayerNormSettings(TrainingRecipe):
    """The training recipe, with the authors' defaults; a batch is one half trusted images."""

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.0


def adapt(task: Task, settings: LayerNormSettings) -> Adapted:
    """Train the layer norms on the test images. Raises ``ValueError`` for a task without unlabelled images."""
    if task.unlabelled is None:
        raise ValueError("layer_norm adapts to unlabelled test images, and this task has none; use the tta track")
    frozen = task.backbone.tower
    trainable = trainable_tower(frozen.copy(trainable=layer_norm_names(frozen.state_dict_open_clip())))
    train(task, trainable, settings)
    return adapted(task, trainable)


def _tower_passes(size: int, settings: LayerNormSettings) -> TowerPasses:
    # The weak views of one half, the strong views of both.
    return TowerPasses(forward=settings.epochs * size, training=2 * settings.epochs * size)


register(
    Method(
        name="layer_norm",
        version=2,
        title="LayerNorm",
        paper="https://arxiv.org/abs/2006.10726",
        settings_class=LayerNormSettings,
        adapt=adapt,
        tracks=frozenset({"tta"}),
        changes_tower=True,
        tower_passes=_tower_passes,
        test_settings={"batch_size": 8},
    )
)
