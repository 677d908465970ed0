"""Tip-Adapter-F: Tip-Adapter whose keys are trained (Zhang et al., 2022).

The keys of :mod:`bolt.methods.common.cache` become a free linear layer, N x D numbers that keep no norm; labels and
text head stay.
AdamW with the official recipe: rate 1e-3, epsilon 1e-4, decay 0.01, a cosine per step over 20 epochs, batches of 256,
one augmented view per epoch. Three things differ from the official code, each to keep the test split out of training:

- alpha and beta are the same two values for every dataset while the keys train; the official ones are set per dataset;
- the last epoch is kept; the official code keeps the best one on the test split;
- afterwards alpha and beta are searched on the support by leave-one-out, each image's own key taken out, instead of
  on a validation split. This is no clean estimate, for the other keys were trained with that image too; what it rules
  out is the image that finds itself. ``search: fixed`` keeps the values of the training.

The views of the epochs begin with those that are averaged into the keys: keys are only where training starts, and so
the method reads no view that the linear probe does not read too.

Shape legend: N support images, B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bolt.methods.base import Method, register
from bolt.methods.common.cache import CacheSettings, build_cache, searched
from bolt.methods.common.frozen_features import train_on_features
from bolt.task.task import Adapted, Task
from bolt.training.loop import Recipe


@dataclass(frozen=True)
class TipAdapterFSettings(Recipe, CacheSettings):
    """The cache's settings and the training recipe, whose defaults are the official ones."""

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    epsilon: float = 1e-4
    warmup_fraction: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        CacheSettings.__post_init__(self)


def adapt(task: Task, settings: TipAdapterFSettings) -> Adapted:
    """Train the keys, then choose alpha and beta."""
    cache = build_cache(task, settings.passes, settings.alpha, settings.beta)
    keys_ND = cache.keys_ND.requires_grad_()

    def adapted() -> Adapted:
        trained, chosen = searched(task, replace(cache, keys_ND=keys_ND.detach().clone()), settings)
        return trained.adapted(keys_ND.numel(), search=chosen)

    return train_on_features(task, [keys_ND], cache.logits, settings, adapted)


register(
    Method(
        name="tip_adapter_f",
        title="Tip-Adapter-F",
        paper="https://arxiv.org/abs/2207.09519",
        settings_class=TipAdapterFSettings,
        adapt=adapt,
        support_feature_views=lambda settings: max(settings.passes, settings.epochs),
        test_settings={"passes": 2, "epochs": 2, "batch_size": 8},
    )
)
