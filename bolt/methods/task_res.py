"""TaskRes: a trained residual on the text embeddings (Yu et al., 2023).

Paper: "Task Residual for Tuning Vision-Language Models", CVPR 2023, arXiv:2211.10277, equation 5. The text embedding
e_c of a class stays frozen, and a residual x_c next to it is trained, from zero::

    w_c = e_c + alpha x_c,    logits_c = scale cos(f, w_c)

The untrained classifier is zero-shot. The defaults are the official ones: alpha 0.5, Adam with rate 2e-3, batches of
256, last epoch kept; 100 epochs with up to four images per class, 200 with more. The official training code adds an L2
penalty of 5e-4 inside Adam's gradient, which the paper does not name. No default depends on validation labels. The
official alpha of 1.0 on Flowers102 was chosen with labels and is left out. The preset ``imagenet`` has the official
rate on ImageNet, 2e-4.

The official e_c is the raw text embedding, before normalisation. A step of Adam moves an entry of x by about the
learning rate, however small the gradient is, so the right alpha depends on the length of e_c. A task has unit
embeddings only, so they are multiplied by a length. The raw length in OpenAI's towers, of width 512 to 1,024, is
roughly 7 to 11; ``text_norm`` is 10 for every dataset. In a narrower tower the step of the whole vector x_c is shorter,
because each of its D entries moves by the rate. There the length is ``text_norm sqrt(D / 512)``, so that a step turns
an embedding as far as at D = 512. On eight datasets of drawn pictures (D = 64), the shorter length raises the mean
accuracy on training images outside the support: from 64.4 to 68.5 % at k = 1, from 65.4 to 71.7 % at k = 4, and from
71.5 to 79.3 % at k = 16. Zero-shot accuracy on these images is 61.4 to 61.9 %.

What else differs from the official code:

- The epochs cycle through ``views`` augmented views, whose frozen features are cached.
- The embedding of a class is the mean of normalised prompts. The official one is the mean of raw prompts.
- The "enhanced" base, a text projection that is tuned beforehand, is left out.

Shape legend: N support images, C classes, D joint embedding width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.coop_training import CoopTrainingSettings, adam, coop_options
from bolt.methods.common.frozen_features import train_on_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1, Positive

EPOCHS = ((4, 100), (math.inf, 200))
"""Pairs (largest number of images per class, default number of epochs)."""
_REFERENCE_WIDTH = 512
"""Width of the joint embedding of ViT-B/32 and ViT-B/16."""


@dataclass(frozen=True)
class TaskResSettings(CoopTrainingSettings):
    """The scale of the residual and the training recipe; the defaults are the official ones.

    Attributes:
        alpha: factor on the residual.
        text_norm: length to which the unit text embeddings are scaled; smaller if an embedding has less than 512
            numbers.
        epochs: by default 100 if no class has more than four images, else 200.
        batch_size, learning_rate, weight_decay: hyperparameters of Adam. The weight decay is an L2 penalty
            inside the gradient.
        views: augmented views that the epochs cycle through.
    """

    alpha: Positive = 0.5
    text_norm: Positive = 10.0
    batch_size: int = 256
    views: AtLeast1 = 20


@register(
    title="TaskRes",
    palette=16,
    summary="trains a residual on the text embeddings",
    paper="https://arxiv.org/abs/2211.10277",
    version=2,
    presets={"imagenet": {"learning_rate": 2e-4}},
    support_feature_views=lambda settings: min(settings.views, settings.epochs or EPOCHS[0][1]),
)
def adapt(task: Task, settings: TaskResSettings) -> Adapted:
    """Train a residual that is added to the text embeddings.

    A task has unit embeddings, so they are first multiplied by the usual length of raw ones, :func:`text_length`.
    """
    return train_residual(task, settings, text_length(settings, task.head_CD.shape[1]) * task.head_CD)


def text_length(settings: TaskResSettings, width: int) -> float:
    """Return the usual length of a raw text embedding. Below a width of 512, it falls with the root of the width."""
    return settings.text_norm * min(1.0, math.sqrt(width / _REFERENCE_WIDTH))


def train_residual(task: Task, settings: TaskResSettings, text_CD: Tensor) -> Adapted:
    """Train a residual (C, D) that is added to the raw text embeddings ``text_CD``."""
    text_CD = text_CD.to(task.backbone.device, torch.float32)
    residual_CD = torch.zeros_like(text_CD, requires_grad=True)
    recipe = settings.recipe(settings.epochs_of(task.support.labels_N, EPOCHS))

    def classifier() -> LinearClassifier:
        weight_CD = F.normalize(text_CD + settings.alpha * residual_CD, dim=-1)
        return LinearClassifier(weight_CD, scale=task.backbone.logit_scale)

    how = coop_options(recipe) | {"make_optimiser": adam}
    return train_on_features(task, [residual_CD], classifier, recipe, views=settings.views, **how)
