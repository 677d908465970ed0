"""The key-value cache of Tip-Adapter (Zhang et al., 2022), and the search for its weight alpha and sharpness beta.

The keys are the features of the support images, averaged over augmented views and then normalised. The values are the
labels. ``logits = scale f T^T + alpha sum_i exp(-beta (1 - f . key_i)) onehot(y_i)`` for a unit feature f.

The paper searches alpha and beta on a labelled validation split, which a few-shot task does not have. Here the search
runs on the support, unless the protocol gives validation images. Each image is classified by its un-augmented feature,
with its own key removed from the cache. If a class has a single image, removing its key leaves the class without a key,
so the cache could only harm the result for this image. Then there is no search, alpha is ``one_shot_alpha``, and
``details`` say so. ``details`` also say if the cache classifies the left-out images worse than the text head alone.

Two defaults were chosen on held-out training images of sixteen datasets of drawn pictures, not on a test split:

- ``alpha_max``, the end of the search grid. With an end of 10, the median of the official per-dataset configurations,
  the search chose the last alpha for a quarter of the sixteen datasets. Mean accuracy with ends of 10, 30 and 50: 61.0,
  64.8 and 64.4 % at 4 images a class; 65.8, 66.6 and 66.9 % at 8. The step of the grid grows with its end. So 30 is
  used, the second largest of the official ends.
- ``one_shot_alpha`` is 3, the mean of the official initial values of eleven datasets (1.17 to 10). Mean accuracy over
  the sixteen datasets: 55.3 % zero-shot, 55.8 % with the paper's alpha of 1, 56.8 % with 3, 58.3 % with 10.

Shape legend: N support images, B queries, C classes, D joint embedding width, A augmented views or candidates for
alpha.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle
from bolt.methods.common.cross_validation import NO_HOLD_OUT, compared_with_zero_shot, fewest_images
from bolt.methods.common.frozen_features import support_features, unit_support_features, unit_validation_features
from bolt.task.classifiers import CacheClassifier, cache_logits
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Range

_BETA_STEPS, _ALPHA_STEPS = 200, 20
_CHUNK = 4_000_000
"""How many affinities (cosines of queries and keys) the search holds in memory at once."""

_GridEnd = Annotated[float, Range("above 0.1, where the search grid begins", lambda value: value > 0.1)]


@dataclass(frozen=True)
class CacheSettings(Checked):
    """The settings of the cache; the defaults of alpha and beta are the paper's.

    Attributes:
        alpha: weight of the cache's logits.
        beta: sharpness of the cache: how fast a key's weight falls with its distance. Without a search, this value is
            used.
        search: ``fixed`` takes ``alpha`` and ``beta``. ``loo`` searches the two, on validation images if the protocol
            gives any, otherwise by leave-one-out on the support.
        one_shot_alpha: alpha if ``loo`` cannot search on the support, because a class has a single image.
        beta_max, alpha_max: ends of the search grid. ``beta_max`` is the median of the official per-dataset
            configurations; see the module's docstring for ``alpha_max``.
        passes: number of augmented views averaged into the keys.
    """

    alpha: NotNegative = 1.0
    beta: NotNegative = 5.5
    search: Literal["loo", "fixed"] = "loo"
    beta_max: _GridEnd = 12.0
    alpha_max: _GridEnd = 30.0
    passes: AtLeast1 = 10
    one_shot_alpha: NotNegative = 3.0


WITH_IMAGES = Range("drawn or whole", lambda validation: validation != "none")
"""The values of the protocol's switch ``validation`` under which there are validation images."""
IDLE_IN_CACHE = (
    Idle(("alpha",), {"search": "fixed"}),
    Idle(("beta_max", "alpha_max", "one_shot_alpha"), {"search": "loo"}),
)
"""The settings of the cache that have an effect with one value of ``search`` only. ``beta`` is not among them: it has
an effect with ``loo`` too, if a class has a single image."""


@dataclass(frozen=True, eq=False)
class FeatureCache(CacheClassifier):
    """The classifier of Tip-Adapter and its successors: a text head and a cache of the support."""

    def adapted(self, details: Mapping[str, str]) -> Adapted:
        """Return the method's result. Its details are alpha, beta and ``details``."""
        return Adapted(self, details={"alpha": float(self.alpha), "beta": float(self.beta), **details})


def build_cache(task: Task, passes: int, alpha: float | Tensor, beta: float | Tensor) -> FeatureCache:
    """Return the cache of the support's views 1 to ``passes``. Raises ``ValueError`` if a feature is not finite."""
    head_CD = task.head_CD.to(task.backbone.device, torch.float32)
    keys_ND = cache_keys([support_features(task, view) for view in range(1, passes + 1)])
    values_NC = F.one_hot(task.support.labels_N.to(head_CD.device), len(head_CD)).to(head_CD.dtype)
    return FeatureCache(head_CD, keys_ND, values_NC, task.backbone.logit_scale, alpha, beta)


def cache_keys(views: Sequence[Tensor]) -> Tensor:
    """Return unit keys (N, D): the raw features (N, D) of A views, first averaged and then normalised."""
    return F.normalize(torch.stack(list(views)).mean(dim=0), dim=-1)


def choose_alpha_beta(task: Task, cache: FeatureCache, settings: CacheSettings) -> tuple[FeatureCache, dict[str, str]]:
    """Choose alpha and beta as ``settings.search`` says; return the cache and ``details`` of the choice.

    The choice is made on the validation images if the protocol gives any, otherwise on the support. A choice on the
    support needs keys that are not trained yet, because trained keys know the labels of the support images.
    """
    if settings.search == "fixed":
        return cache, {"search": "fixed"}
    held_out = unit_validation_features(task)
    if held_out is None and fewest_images(task.support.labels_N) < 2:
        return replace(cache, alpha=settings.one_shot_alpha), {"search": NO_HOLD_OUT}
    queries_BD, labels_B = held_out or (unit_support_features(task, EVALUATION_VIEW), cache.values_NC.argmax(dim=-1))
    affinity_BN = cache.affinity(queries_BD)
    if held_out is None:
        affinity_BN.fill_diagonal_(-torch.inf)
    text_BC = cache.scale * queries_BD @ cache.head_CD.T
    grid = search_grid(settings.beta_max, settings.alpha_max)
    beta, alpha = search_alpha_beta(text_BC, affinity_BN, cache.values_NC, labels_B, *grid)
    chosen = replace(cache, alpha=alpha, beta=beta)
    if held_out is not None:
        return chosen, {"search": "validation images"}
    logits_BC = text_BC + alpha * cache_logits(affinity_BN, cache.values_NC, beta)
    correct = int((logits_BC.argmax(dim=-1) == labels_B).sum())
    return chosen, {"search": "leave one out", **compared_with_zero_shot(task, correct)}


def search_grid(beta_max: float, alpha_max: float) -> tuple[list[float], list[float]]:
    """Return Tip-Adapter's search grid: 200 betas and 20 alphas, evenly spaced from 0.1, without the upper ends."""
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
    """Return the (beta, alpha) with the most correct queries; ties go to the first beta, then to the first alpha.

    An affinity of minus infinity removes a key from a query's cache.
    """
    alphas_A11 = torch.tensor(alphas).to(text_logits_BC)[:, None, None]
    correct = torch.zeros(len(betas), len(alphas), dtype=torch.long, device=labels_B.device)
    rows = max(1, _CHUNK // affinity_BN.shape[1])
    chunks = zip(*(torch.split(part, rows) for part in (text_logits_BC, affinity_BN, labels_B)), strict=True)
    for text_BC, affinity, labels in chunks:
        for beta_index, beta in enumerate(betas):
            cache_BC = cache_logits(affinity, values_NC, beta)
            predicted_AB = (text_BC + alphas_A11 * cache_BC).argmax(dim=-1)
            correct[beta_index] += (predicted_AB == labels).sum(dim=-1)
    # Tensor.argmax does not promise the first maximum; list.index does.
    flat = cast(list[int], correct.flatten().tolist())
    best_beta, best_alpha = divmod(flat.index(max(flat)), len(alphas))
    return betas[best_beta], alphas[best_alpha]
