"""APE-T: trains a residual of the class vectors on the chosen channels, and a weight for each image of the cache.

Paper: Zhu et al., ICCV 2023, arXiv:2304.01195. The channels are chosen by the text alone. A residual r_c (q,) of class
c starts from zero. On the chosen channels it is added to the text and to the keys of the class. The sums are not
normalised again. Every image has a weight v_i, which starts from 1::

    logits = scale f (T + r)^T + alpha sum_i exp(-beta (1 - f . (s_i + r_y))) v_i onehot(y_i)

The optimiser is AdamW with rate 1e-3, epsilon 1e-3 and weight decay 0.1, for 20 epochs of batches of 256, with a cosine
schedule. What differs from the official code:

- The official code selects one number of channels and trains another number, so it fails on eight of its eleven
  datasets. Here the two numbers are the same.
- The last epoch is kept, and alpha and beta stay at 2 and 1. The official code keeps the epoch that is best on a
  validation split and then searches alpha and beta on that split. If the protocol gives validation images, alpha and
  beta are searched on them here too.
- Numbers are float32, not float16.

Shape legend: N support images, C classes, D joint embedding width, q kept channels.
"""

from dataclasses import dataclass, replace

import torch

from bolt.methods.ape import best_channels
from bolt.methods.base import Idle, register
from bolt.methods.common.feature_cache import WITH_IMAGES, CacheSettings, FeatureCache, build_cache, choose_alpha_beta
from bolt.methods.common.frozen_features import train_on_features
from bolt.task.task import Adapted, Task
from bolt.training.loop import PlainRecipe
from bolt.util.ranges import Share


@dataclass(frozen=True)
class ApeTSettings(PlainRecipe, CacheSettings):
    """The cache, the choice of channels and the training recipe.

    Attributes:
        channels: share of the channels that get a residual.
        similarity_weight, variance_weight: w_0 and w_1 in the choice of channels, see :mod:`bolt.methods.ape`.
    """

    alpha: float = 2.0
    beta: float = 1.0
    channels: Share = 0.7
    similarity_weight: float = 0.2
    variance_weight: float = 0.8
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    epsilon: float = 1e-3


@register(
    title="APE-T",
    palette=40,
    summary="trains class residuals on the channels that tell classes apart, and weights of the cached images",
    paper="https://arxiv.org/abs/2304.01195",
    uses_validation=True,
    support_feature_views=lambda settings: max(settings.passes, settings.epochs),
    idle=(Idle(("search", "beta_max", "alpha_max"), {"validation": WITH_IMAGES}), Idle(("one_shot_alpha",), {})),
)
def adapt(task: Task, settings: ApeTSettings) -> Adapted:
    """Choose the channels by the text, then train the residual and the weights."""
    cache = build_cache(task, settings.passes, settings.alpha, settings.beta)
    head_CD, labels_N = cache.head_CD.double(), cache.values_NC.argmax(dim=-1)
    classes = len(head_CD)
    similarity_D = (head_CD.sum(dim=0).square() - head_CD.square().sum(dim=0)) / max(classes * (classes - 1), 1)
    weights = settings.similarity_weight, settings.variance_weight
    channels_q = best_channels(head_CD, similarity_D, settings.channels, weights)
    residual_Cq = torch.zeros(classes, len(channels_q)).to(cache.head_CD).requires_grad_()
    weights_N1 = torch.ones(len(labels_N), 1).to(cache.head_CD).requires_grad_()

    def current() -> FeatureCache:
        residual_CD = torch.zeros_like(cache.head_CD).index_add(1, channels_q, residual_Cq)
        keys_ND, values_NC = cache.keys_ND + residual_CD[labels_N], cache.values_NC * weights_N1
        return replace(cache, head_CD=cache.head_CD + residual_CD, keys_ND=keys_ND, values_NC=values_NC)

    def finish(trained: FeatureCache) -> Adapted:
        details = {"search": "fixed"}
        if task.validation is not None:
            trained, details = choose_alpha_beta(task, trained, settings)
        return trained.adapted(details)

    return train_on_features(task, [residual_Cq, weights_N1], current, settings, finish=finish)
