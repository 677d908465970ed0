"""The key-value cache of Tip-Adapter (Zhang et al., 2022), and the search of its two numbers on the support alone.

Keys are the support images' features, averaged over augmented passes and then normalised; values are their labels.
``logits = scale f T^T + alpha sum_i exp(-beta (1 - f . key_i)) onehot(y_i)``.

The paper searches alpha and beta on a labelled validation split, which a few-shot task does not have. Here the search
runs on the support: each image is classified by its un-augmented feature with its own key taken out of the cache. Where
a class has a single image, taking it out would leave the class without a key, and the search could only find that the
cache does harm; the fixed values are used then, and ``details`` says so.

Shape legend: N support images, B queries, C classes, D joint embedding width, A passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.common.frozen_features import support_features, unit_support_features
from bolt.task.classifiers import CacheClassifier, cache_logits
from bolt.task.task import EVALUATION_VIEW, Adapted, Task

_BETA_STEPS, _ALPHA_STEPS = 200, 20
_CHUNK = 4_000_000
"""Affinities held at once during the search_alpha_beta, to bound its memory."""


@dataclass(frozen=True)
class CacheSettings:
    """Attributes:
    alpha: weight of the cache (the paper's default).
    beta: its sharpness (the paper's default).
    search: ``loo`` chooses both by leave-one-out on the support; ``fixed`` keeps those above.
    beta_max, alpha_max: ends of the search grid; the medians of the official per-dataset configurations.
    passes: augmented passes averaged into the keys.
    """

    alpha: float = 1.0
    beta: float = 5.5
    search: str = "loo"
    beta_max: float = 12.0
    alpha_max: float = 10.0
    passes: int = 10

    def __post_init__(self) -> None:
        if self.search not in ("loo", "fixed"):
            raise ValueError(f"search is 'loo' or 'fixed', not {self.search!r}")
        if self.passes < 1 or min(self.alpha, self.beta) < 0 or min(self.alpha_max, self.beta_max) <= 0.1:
            raise ValueError("passes is at least 1, alpha and beta are not negative, the grid's ends exceed 0.1")


@dataclass(frozen=True, eq=False)
class FeatureCache(CacheClassifier):
    """A text head with a cache beside it, while alpha, beta or the keys are still being chosen."""

    def logits(self, features_BD: Tensor) -> Tensor:
        """Raw features -> logits (B, C)."""
        return self(features_BD)

    def adapted(self, trained: int = 0, **details: str) -> Adapted:
        """The classifier, with what it was built with in its details."""
        return Adapted(self, None, trained, {"alpha": float(self.alpha), "beta": float(self.beta), **details})


def build_cache(task: Task, passes: int, alpha: float | Tensor, beta: float | Tensor) -> FeatureCache:
    """The cache of views 1 to ``passes`` of the support. Raises ``ValueError`` for features that are not finite."""
    head_CD = task.head_CD.to(task.backbone.device, torch.float32)
    keys_ND = cache_keys([support_features(task, view) for view in range(1, passes + 1)])
    values_NC = F.one_hot(task.support.labels_N.to(head_CD.device), len(head_CD)).to(head_CD.dtype)
    return FeatureCache(head_CD, keys_ND, values_NC, task.backbone.logit_scale, alpha, beta)


def cache_keys(passes: Sequence[Tensor]) -> Tensor:
    """Keys (N, D) from A passes of raw features (N, D): averaged first, normalised after."""
    return F.normalize(torch.stack(list(passes)).mean(dim=0), dim=-1)


def choose_alpha_beta(task: Task, cache: FeatureCache, settings: CacheSettings) -> tuple[FeatureCache, str]:
    """The cache with the alpha and beta that ``settings.search`` asks for, and in words how they were chosen."""
    if settings.search == "fixed":
        return cache, "fixed"
    counts_C = cache.values_NC.sum(dim=0)
    if counts_C[counts_C > 0].min() < 2:
        return cache, "fixed: a class has one image, none to leave out"
    queries_ND = unit_support_features(task, EVALUATION_VIEW)
    affinity_NN = (queries_ND @ cache.keys_ND.T).fill_diagonal_(-torch.inf)
    labels_N = cache.values_NC.argmax(dim=-1)
    text_logits_NC = cache.scale * queries_ND @ cache.head_CD.T
    grid = search_grid(settings.beta_max, settings.alpha_max)
    beta, alpha = search_alpha_beta(text_logits_NC, affinity_NN, cache.values_NC, labels_N, *grid)
    return replace(cache, alpha=alpha, beta=beta), "leave one out"


def search_grid(beta_max: float, alpha_max: float) -> tuple[list[float], list[float]]:
    """The official grid: 200 betas and 20 alphas from 0.1, ends excluded."""
    betas = [0.1 + step * (beta_max - 0.1) / _BETA_STEPS for step in range(_BETA_STEPS)]
    alphas = [0.1 + step * (alpha_max - 0.1) / _ALPHA_STEPS for step in range(_ALPHA_STEPS)]
    return betas, alphas


def search_alpha_beta(
    text_logits_BC: Tensor,
    affinity_BN: Tensor,
    values_NC: Tensor,
    labels_B: Tensor,
    betas: Sequence[float],
    alphas: Sequence[float],
) -> tuple[float, float]:
    """The (beta, alpha) with the most correct queries, the first one in case of a tie (beta is the outer loop).

    An affinity of minus infinity takes a key out of a query's cache.
    """
    correct = torch.zeros(len(betas), len(alphas), dtype=torch.long, device=labels_B.device)
    rows = max(1, _CHUNK // affinity_BN.shape[1])
    chunks = zip(*(torch.split(part, rows) for part in (text_logits_BC, affinity_BN, labels_B)), strict=True)
    for text_BC, affinity, labels in chunks:
        for position, beta in enumerate(betas):
            cache_BC = cache_logits(affinity, values_NC, beta)
            for place, alpha in enumerate(alphas):
                correct[position, place] += ((text_BC + alpha * cache_BC).argmax(dim=-1) == labels).sum()
    # argmax over a count does not promise the first maximum, a comparison of Python numbers does
    flat = cast(list[int], correct.flatten().tolist())
    beta_at, alpha_at = divmod(flat.index(max(flat)), len(alphas))
    return betas[beta_at], alphas[alpha_at]
