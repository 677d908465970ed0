"""APE: a cache of the support that reads only the feature channels that tell classes apart (Zhu et al., ICCV 2023).

Paper: arXiv:2304.01195. A channel is a coordinate of the joint embedding. The samples of a class are its text embedding
and the features of its images. For every pair of samples of different classes, the two values in a channel are
multiplied; the similarity of the channel is the mean product. The variance of a channel is the variance of the C text
embeddings in this channel. The q channels with the highest ``-w_0 similarity + w_1 variance`` are kept. A cache as in
Tip-Adapter compares a query f' with the support features s' on these channels, normalised again. The logits of the
cache are added to those of the text head, which reads all channels::

    logits = scale f T^T + alpha sum_i exp(-beta (1 - f' . s'_i)) v_i onehot(y_i)
    v_i = exp(gamma log2((1 + 1e-6) / (p_i + 1e-6)))

p_i is the probability that the text head gives to the class of image i. It is computed on the kept channels and without
the scale. So p_i is nearly 1 / C for every image, and the weights v_i differ little. What differs from the official
code:

- alpha and beta are chosen by leave-one-out on the support, or on validation images where the protocol gives them. The
  official code chooses alpha, beta and gamma on a validation split, and it has its own q and weights for each dataset.
  Here q is 70 per cent of the channels, w_0 and w_1 are 0.5 and gamma is 0.1.
- The text is the task's head. The official code has about fifty more sentences per class from a language model.
- Classes may have different numbers of images. All pairs of samples have the same weight in the mean.
- With a single class there are no pairs, and all channels are kept.

Shape legend: N support images, C classes, D joint embedding width, q kept channels.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.feature_cache import IDLE_IN_CACHE, CacheSettings, FeatureCache, build_cache, choose_alpha_beta
from bolt.task.task import Adapted, Task
from bolt.util.ranges import Share

_SMALL = 1e-6


@dataclass(frozen=True)
class ApeSettings(CacheSettings):
    """The settings of the cache, of the choice of channels and of the images' weights.

    Attributes:
        channels: share of the channels that are kept.
        similarity_weight, variance_weight: weights w_0 and w_1 of a channel's similarity and variance in its score.
        gamma: exponent of the images' weights. A larger gamma gives more weight to images that the text head takes for
            another class.
    """

    beta: float = 1.0
    one_shot_alpha: float = 2.0
    channels: Share = 0.7
    similarity_weight: float = 0.5
    variance_weight: float = 0.5
    gamma: float = 0.1


def channel_similarity(head_CD: Tensor, keys_ND: Tensor, onehot_NC: Tensor) -> Tensor:
    """Return the similarity of every channel, (D,): the mean product of two samples of different classes.

    The samples of a class are its text and its images. Let s_c be the sum of the samples of class c in a channel. Then
    the products of all pairs of samples of different classes add up to ``(sum_c s_c)^2 - sum_c s_c^2``.
    """
    sums_CD = head_CD + onehot_NC.T @ keys_ND
    counts_C = 1 + onehot_NC.sum(dim=0)
    products_D = sums_CD.sum(dim=0).square() - sums_CD.square().sum(dim=0)
    return products_D / (counts_C.sum().square() - counts_C.square().sum())


def best_channels(head_CD: Tensor, similarity_D: Tensor, share: float, weights: tuple[float, float]) -> Tensor:
    """Return the indices (q,) of the channels with the highest scores, best first; all channels for a single class."""
    classes, width = head_CD.shape
    if classes < 2:
        return torch.arange(width, device=head_CD.device)
    score_D = weights[1] * head_CD.var(dim=0) - weights[0] * similarity_D
    return score_D.topk(max(round(share * width), 1)).indices


def image_weights(head_Cq: Tensor, keys_Nq: Tensor, labels_N: Tensor, gamma: float) -> Tensor:
    """Return the images' weights v (N,) from unit features on the kept channels."""
    own_N = (keys_Nq @ head_Cq.T).softmax(dim=-1).gather(1, labels_N[:, None]).squeeze(-1)
    return torch.exp(gamma * torch.log2((1 + _SMALL) / (own_N + _SMALL)))


def refine(cache: FeatureCache, settings: ApeSettings) -> FeatureCache:
    """Return the cache, reduced to the best channels and with a weight for each image."""
    head_CD, keys_ND, onehot_NC = (part.double() for part in (cache.head_CD, cache.keys_ND, cache.values_NC))
    weights = settings.similarity_weight, settings.variance_weight
    similarity_D = channel_similarity(head_CD, keys_ND, onehot_NC)
    channels_q = best_channels(head_CD, similarity_D, settings.channels, weights)
    head_Cq, keys_Nq = (F.normalize(part[:, channels_q], dim=-1) for part in (head_CD, keys_ND))
    weights_N = image_weights(head_Cq, keys_Nq, onehot_NC.argmax(dim=-1), settings.gamma)
    values_NC = (weights_N[:, None] * onehot_NC).to(cache.values_NC)
    return replace(cache, keys_ND=keys_Nq.to(cache.keys_ND), values_NC=values_NC, channels_q=channels_q)


@register(
    title="APE",
    palette=39,
    summary="adds a cache of the support on the channels that tell classes apart",
    paper="https://arxiv.org/abs/2304.01195",
    uses_validation=True,
    support_feature_views=lambda settings: settings.passes,
    idle=IDLE_IN_CACHE,
)
def adapt(task: Task, settings: ApeSettings) -> Adapted:
    """Choose the channels, then alpha and beta."""
    cache = refine(build_cache(task, settings.passes, settings.alpha, settings.beta), settings)
    chosen, details = choose_alpha_beta(task, cache, settings)
    return chosen.adapted(details)
