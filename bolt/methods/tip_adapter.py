"""Tip-Adapter: a cache of the support's features beside the text head; nothing is trained (Zhang et al., 2022).

Paper: arXiv:2207.09519. The cache and the search for alpha and beta are in :mod:`bolt.methods.common.feature_cache`.
What differs from the official code:

- alpha and beta are searched on the support by leave-one-out. The official code searches them on a validation split. If
  the protocol gives validation images, the search uses them here too.
- The switch ``tip_adapter: as_published`` follows the BOLT authors' code. The cache holds one augmented view. alpha and
  beta start at 2 and 1, and are trained for 20 epochs. The authors' loader shuffles the images, but their code takes
  the cached features in the order of the support. So the features and the labels of a batch belong to different images,
  and the training learns only that the cache does not help. Each image also finds its own key in the cache, with a
  cosine of 1.

Shape legend: N support images, B batch, C classes, D joint embedding width.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor

from bolt.clip.transfer import to_device
from bolt.methods.base import Idle, register
from bolt.methods.common.feature_cache import IDLE_IN_CACHE, CacheSettings, build_cache, choose_alpha_beta
from bolt.methods.common.frozen_features import support_features
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import fit_task
from bolt.training.loop import TrainingRecipe, cross_entropy

PUBLISHED_ALPHA, PUBLISHED_BETA = 2.0, 1.0
PUBLISHED_RECIPE = TrainingRecipe(epochs=20, batch_size=32, learning_rate=1e-3, warmup_fraction=0.0)


@register(
    title="Tip-Adapter",
    palette=2,
    summary="adds a key-value cache of the support images to the text head",
    paper="https://arxiv.org/abs/2207.09519",
    version=2,
    baseline_crop=True,
    uses_validation=True,
    support_feature_views=lambda settings: settings.passes,
    idle=(*IDLE_IN_CACHE, Idle([field.name for field in fields(CacheSettings)], {"tip_adapter": "sound"}, noted=True)),
)
def adapt(task: Task, settings: CacheSettings) -> Adapted:
    """Build the cache, and choose alpha and beta as the settings and the protocol say."""
    if task.protocol.tip_adapter == "as_published":
        return _adapt_as_published(task)
    built = build_cache(task, settings.passes, settings.alpha, settings.beta)
    cache, details = choose_alpha_beta(task, built, settings)
    return cache.adapted(details)


def _adapt_as_published(task: Task) -> Adapted:
    """Train alpha and beta as the BOLT authors' code does: the features of one image get the label of another image.

    In each epoch the labels are shuffled, but the features stay in the order of the support.
    """
    device, order = task.backbone.device, task.support.order
    alpha = torch.tensor(PUBLISHED_ALPHA, device=device, requires_grad=True)
    beta = torch.tensor(PUBLISHED_BETA, device=device, requires_grad=True)
    cache = build_cache(task, 1, alpha, beta)
    features_ND = support_features(task, 1)
    labels_N = task.support.labels_N.to(device)
    in_order = torch.arange(len(labels_N))

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        others = to_device(order(epoch)[rows], device)
        return cross_entropy(cache(features_ND[to_device(rows, device)]), labels_N[others])

    def adapted() -> Adapted:
        frozen = replace(cache, alpha=float(alpha.detach()), beta=float(beta.detach()))
        result = frozen.adapted({"search": "as published: trained, features and labels not matching"})
        return replace(result, trainable_parameters=2)

    return fit_task(task, [alpha, beta], loss_of_rows, lambda epoch: in_order, PUBLISHED_RECIPE, adapted)
