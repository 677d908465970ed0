"""CLIP-Adapter: a small residual network on the image feature, trained on the support (Gao et al., 2024).

Paper: "CLIP-Adapter: Better Vision-Language Models with Feature Adapters", IJCV 2024, arXiv:2110.04544, the visual
adapter, equations 3 to 7. For a raw feature r and unit text embeddings t_c::

    r' = ratio relu(U relu(V r)) + (1 - ratio) r,    logits_c = scale cos(r', t_c)

V is (D / 4, D) and U is (D, D / 4), without biases: D^2 / 2 numbers. Both are drawn uniformly within 1 / sqrt(inputs).
So the untrained classifier is not zero-shot, because the output of a random adapter is mixed in.

The defaults are those of the released code, which uses no validation labels: ratio 0.2, SGD with momentum 0.9, rate
0.002, weight decay 5e-4, batches of 32, 200 epochs, last epoch kept. The paper searches the ratio per dataset on
labels; here it is fixed. The rate is low: if the support fits into one batch, 200 epochs are only 200 small steps.

What differs from the released code:

- The epochs cycle through ``views`` augmented views, whose frozen features are cached.
- The last partial batch of an epoch is used too.
- The text embedding of a class is the mean over the prompts. The released code has one prompt per class.
- The paper's text adapter is left out, as in the released code.

Shape legend: N support images, C classes, D joint embedding width, H hidden width of the adapter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.methods.base import register
from bolt.methods.common.coop_training import CoopTrainingSettings, coop_options
from bolt.methods.common.frozen_features import train_on_features
from bolt.seeds import torch_generator
from bolt.task.classifiers import AdapterClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1, Fraction

_REDUCTION = 4


@dataclass(frozen=True)
class ClipAdapterSettings(CoopTrainingSettings):
    """The settings of CLIP-Adapter, with the defaults of the released code.

    Attributes:
        ratio: share of the adapter's output in the adapted feature; the paper's alpha.
        epochs, batch_size, learning_rate, weight_decay: hyperparameters of SGD with momentum 0.9.
        views: augmented views that the epochs cycle through.
    """

    ratio: Fraction = 0.2
    epochs: int = 200
    views: AtLeast1 = 20


def initial_layers(task: Task) -> tuple[Tensor, Tensor]:
    """Return the untrained layers V (H, D) and U (D, H), uniform within 1 / sqrt(number of inputs)."""
    width = task.head_CD.shape[1]
    hidden = max(1, width // _REDUCTION)
    generator = torch_generator("clip adapter", task.dataset, task.seed)
    return (
        (2 * torch.rand(hidden, width, generator=generator) - 1) * width**-0.5,
        (2 * torch.rand(width, hidden, generator=generator) - 1) * hidden**-0.5,
    )


@register(
    title="CLIP-Adapter",
    palette=15,
    summary="trains a small residual network on the image feature",
    paper="https://arxiv.org/abs/2110.04544",
    names_new_classes=True,
    support_feature_views=lambda settings: min(settings.views, settings.epochs),
)
def adapt(task: Task, settings: ClipAdapterSettings) -> Adapted:
    """Train the adapter from random layers, on frozen features of the support."""
    return train_adapter(task, settings, *initial_layers(task))


def train_adapter(task: Task, settings: ClipAdapterSettings, down_HD: Tensor, up_DH: Tensor) -> Adapted:
    """Train the adapter from the layers V (H, D) and U (D, H)."""
    device = task.backbone.device
    down_HD, up_DH = (layer.to(device).clone().requires_grad_() for layer in (down_HD, up_DH))
    head_CD = task.head_CD.to(device, torch.float32)
    classifier = AdapterClassifier(head_CD, task.backbone.logit_scale, down_HD, up_DH, settings.ratio)
    recipe = settings.recipe(settings.epochs)
    how = coop_options(recipe)
    return train_on_features(task, [down_HD, up_DH], lambda: classifier, recipe, views=settings.views, **how)
