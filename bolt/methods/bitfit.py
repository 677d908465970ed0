"""BitFit: trains the biases of the image tower and nothing else (Ben Zaken et al., ACL 2022, arXiv:2106.10199).

The layer norms, the fused query-key-value projection, the attention output and both feed-forward layers have biases:
102,912 parameters in ViT-B, 272,384 in ViT-L/14. The convolution, the embeddings and the visual projection have none.
The text head stays frozen. A bias of the keys has no effect, because a softmax does not change if the same number is
added to all its inputs. So 9,216 of ViT-B's parameters have a zero gradient.

The optimiser is the official one: AdamW with learning rate 1e-3, epsilon 1e-6, without weight decay, gradients clipped
at 1. What differs:

- The authors tune the rate on validation data of each task. Here the rate is the default of their code.
- The rate follows the default schedule here, a warm-up and a cosine. The settings ``schedule: constant`` and
  ``warmup_fraction: 0`` give the official schedule.
- The authors also train the task's classifier. Here the text head is the classifier.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, layer_norm_names
from bolt.methods.base import register_tower_training
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import train, trainable_tower
from bolt.training.loop import TrainingRecipe
from bolt.util.ranges import some_of

_BIAS_KINDS = ("layer_norm", "attention_in", "attention_out", "mlp_in", "mlp_out")
"""Kinds of biases in the settings: those of the layer norms, and those of four kinds of weight matrices."""


@dataclass(frozen=True)
class BitFitSettings(TrainingRecipe):
    """The training recipe, and which biases are trained.

    Attributes:
        biases: the kinds of biases that are trained: layer_norm, attention_in, attention_out, mlp_in, mlp_out.
    """

    epsilon: float = 1e-6
    biases: Annotated[tuple[str, ...], some_of(_BIAS_KINDS)] = _BIAS_KINDS


def bias_names(state: Mapping[str, Tensor], kinds: Collection[str] = _BIAS_KINDS) -> list[str]:
    """Return open_clip's names of the biases of some kinds in ``state``, an image tower's state dictionary."""
    of_matrices = tuple(
        f"{end.removesuffix('weight')}bias" for kind in kinds if kind != "layer_norm" for end in MATRIX_KINDS[kind]
    )
    norms = {*layer_norm_names(state)} if "layer_norm" in kinds else set()
    return [name for name in state if name.endswith(of_matrices) or (name in norms and name.endswith(".bias"))]


@register_tower_training(
    title="BitFit",
    palette=29,
    summary="trains the biases of the image tower",
    paper="https://arxiv.org/abs/2106.10199",
    training_forwards=2.01,
)
def adapt(task: Task, settings: BitFitSettings) -> Adapted:
    """Train the biases on the support."""
    frozen = task.backbone.tower
    trainable = trainable_tower(frozen.copy(trainable=bias_names(frozen.state_dict_open_clip(), settings.biases)))
    return train(task, trainable, settings)
