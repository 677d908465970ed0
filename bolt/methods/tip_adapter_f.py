"""Tip-Adapter-F: Tip-Adapter whose cache keys are trained (Zhang et al., 2022, arXiv:2207.09519).

The keys of :mod:`bolt.methods.common.feature_cache` are trained as a linear layer of N x D numbers; they do not stay
unit vectors. The cache's labels and the text head stay. The recipe is the official one: AdamW with learning rate 1e-3,
epsilon 1e-4 and weight decay 0.01, a cosine per step over 20 epochs, batches of 256, one augmented view per epoch.

The official code selects on labelled validation or test images. What differs from it:

- While the keys train, alpha and beta have the same values on every dataset. The official values are set per dataset.
- The last epoch is kept. The official code keeps the epoch that is best on the test split.
- After training, alpha and beta are searched on the support by leave-one-out, with each image's own key removed. The
  official code searches on a validation split. This is no clean estimate, because the other keys were trained with that
  image too; it only excludes that an image finds itself. ``search: fixed`` keeps the values used in training.

The epochs start with the views that are averaged into the initial keys, so the method reads no view that the linear
probe does not read too.

Shape legend: N support images, B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bolt.methods.base import Method, register
from bolt.methods.common.feature_cache import CacheSettings, build_cache, choose_alpha_beta
from bolt.methods.common.frozen_features import train_on_features
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class TipAdapterFSettings(TrainingRecipe, CacheSettings):
    """The settings of the cache and the training recipe; the defaults are the official ones."""

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    epsilon: float = 1e-4
    warmup_fraction: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        TrainingRecipe.__post_init__(self)
        CacheSettings.__post_init__(self)


def adapt(task: Task, settings: TipAdapterFSettings) -> Adapted:
    """Train the keys, then search alpha and beta."""
    cache = build_cache(task, settings.passes, settings.alpha, settings.beta)
    keys_ND = cache.keys_ND.requires_grad_()

    def adapted() -> Adapted:
        trained, chosen = choose_alpha_beta(task, replace(cache, keys_ND=keys_ND.detach().clone()), settings)
        return trained.adapted(keys_ND.numel(), search=chosen)

    return train_on_features(task, [keys_ND], cache.logits, settings, adapted)


register(
    Method(
        name="tip_adapter_f",
        title="Tip-Adapter-F",
        summary="adds a key-value cache with trained keys to the text head",
        paper="https://arxiv.org/abs/2207.09519",
        settings_class=TipAdapterFSettings,
        adapt=adapt,
        support_feature_views=lambda settings: max(settings.passes, settings.epochs),
        test_settings={"passes": 2, "epochs": 2, "batch_size": 8},
    )
)
