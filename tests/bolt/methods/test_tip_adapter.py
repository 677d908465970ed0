"""Tip-Adapter against the official functions' results."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.feature_cache import (
    CacheSettings,
    build_cache,
    cache_keys,
    choose_alpha_beta,
    search_alpha_beta,
    search_grid,
)
from bolt.methods.tip_adapter import adapt
from bolt.methods.tip_adapter_f import TipAdapterFSettings
from bolt.protocol import STRICT
from bolt.task.classifiers import cache_logits
from tests.helpers.adapting import with_curve
from tests.helpers.frozen_tasks import clip_like, frozen_task, with_features
from tests.helpers.towers import make_task
from tests.helpers.waves import plane_wave, unit

KEYS = unit(plane_wave(6, 8, 0.7, 1.3, 0.2) + 0.8)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
HEAD = unit(plane_wave(3, 8, 1.1, 0.9, 0.5) + 0.5)
QUERIES = unit(plane_wave(4, 8, 0.37, 1.9, 0.1) + 0.8)
QUERY_LABELS = torch.tensor([0, 1, 2, 1])
VALUES = F.one_hot(LABELS, 3).float()


@pytest.mark.parametrize(
    ("beta", "alpha", "cache", "logits"),
    [
        (1.0, 2.0, [1.365169, 1.437474, 1.360938], [58.644371, 59.291473, 52.011921]),
        (5.5, 1.17, [0.246543, 0.325310, 0.245642], [56.202488, 56.797138, 49.577446]),
    ],
)
def test_logits_reproduce_the_reference(beta: float, alpha: float, cache: list[float], logits: list[float]) -> None:
    added = cache_logits(QUERIES @ KEYS.T, VALUES, beta)
    torch.testing.assert_close(added[0], torch.tensor(cache), rtol=0, atol=1e-4)
    total = 100 * QUERIES @ HEAD.T + alpha * added
    torch.testing.assert_close(total[0], torch.tensor(logits), rtol=0, atol=1e-4)


def test_the_search_grid_is_the_official_one() -> None:
    betas, alphas = search_grid(7, 3)
    assert (len(betas), len(alphas)) == (200, 20)
    assert betas[:2] == pytest.approx([0.1, 0.1345])
    assert betas[-1] == pytest.approx(6.9655)
    assert alphas[:2] == pytest.approx([0.1, 0.245])
    assert alphas[-1] == pytest.approx(2.855)


def test_the_first_maximum_wins() -> None:
    found = search_alpha_beta(100 * QUERIES @ HEAD.T, QUERIES @ KEYS.T, VALUES, QUERY_LABELS, *search_grid(7, 3))
    assert found == (0.1, 0.1)


def test_the_search_finds_what_only_some_settings_solve() -> None:
    """The text head is wrong by three logits, so the cache must add at least three."""
    text = torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    betas, alphas = [1.0, 20.0], [1.0, 4.0, 8.0]
    beta, alpha = search_alpha_beta(text, torch.eye(2), torch.eye(2), torch.tensor([0, 1]), betas, alphas)
    assert (beta, alpha) == (1.0, 8.0)
    assert search_alpha_beta(text, torch.eye(2), torch.eye(2), torch.tensor([0, 1]), [20.0], alphas) == (20.0, 4.0)


def test_keys_are_averaged_first_and_normalised_after() -> None:
    passes = [torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    torch.testing.assert_close(cache_keys(passes), F.normalize(torch.tensor([[1.5, 0.5]]), dim=-1))
    normalised_first = F.normalize(torch.stack([F.normalize(p, dim=-1) for p in passes]).mean(dim=0), dim=-1)
    assert not torch.allclose(cache_keys(passes), normalised_first)


def test_settings_are_searched_on_the_support_and_told(backbone: Backbone) -> None:
    adapted = adapt(make_task(backbone, shots=4), CacheSettings(passes=2))
    assert adapted.details["search"] == "leave one out"
    fixed = adapt(make_task(backbone, shots=4), CacheSettings(passes=2, search="fixed"))
    assert fixed.details == {"alpha": 1.0, "beta": 5.5, "search": "fixed"}


AS_PUBLISHED = STRICT.with_switches(tip_adapter="as_published")


def test_as_published_trains_two_numbers_on_one_view(backbone: Backbone) -> None:
    read: set[int] = set()

    def watched(view: int, features_ND: Tensor) -> Tensor:
        read.add(view)
        return features_ND

    adapted = adapt(with_features(clip_like(backbone, shots=4, protocol=AS_PUBLISHED).task, watched), CacheSettings())
    assert read == {1}
    assert adapted.trainable_parameters == 2
    assert 0 < abs(float(adapted.details["alpha"]) - 2) < 0.05
    assert 0 < abs(float(adapted.details["beta"]) - 1) < 0.05


def test_as_published_labels_do_not_belong_to_the_features(backbone: Backbone) -> None:
    """The text head makes no error, but the loss is above guessing, because features get labels of other images."""
    labels = torch.arange(4).repeat(8)
    head = torch.eye(4, 8)
    task, losses = with_curve(frozen_task(backbone, lambda view: head[labels], labels, head, AS_PUBLISHED))
    adapt(task, CacheSettings())
    assert len(losses) == 20
    assert min(losses) > 10


def test_untrained_keys_are_tip_adapters(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=4)
    still = TipAdapterFSettings(epochs=1, learning_rate=1e-12, weight_decay=0.0)
    trained = METHODS["tip_adapter_f"].adapt(problem.task, still)
    free = adapt(problem.task, CacheSettings())
    assert trained.details == free.details
    torch.testing.assert_close(trained.classify(problem.test_ND), free.classify(problem.test_ND))
    assert trained.trainable_parameters == len(problem.task.support) * problem.task.head_CD.shape[1]


@pytest.mark.parametrize("how", ["loo", "fixed"])
def test_training_the_keys_helps(how: Literal["loo", "fixed"], backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=16)
    trained = METHODS["tip_adapter_f"].adapt(problem.task, TipAdapterFSettings(search=how))
    free = adapt(problem.task, CacheSettings(search=how))
    assert problem.accuracy(trained) > problem.accuracy(free) + 2
    assert problem.accuracy(free) > problem.zero_shot() + 2


def test_the_first_step_of_the_keys_follows_the_recipe(backbone: Backbone) -> None:
    """One full batch: AdamW moves an entry by rate x g / (|g| + epsilon), after a decay of rate x 0.01."""
    problem = clip_like(backbone, shots=2)
    moved: list[Tensor] = []
    task = replace(problem.task, after_epoch=lambda epoch, make: moved.append(make().classify(problem.test_ND)))
    settings = TipAdapterFSettings(epochs=1, search="fixed")
    METHODS["tip_adapter_f"].adapt(task, settings)
    cache = build_cache(task, settings.passes, settings.alpha, settings.beta)
    keys = cache.keys_ND.requires_grad_()
    F.cross_entropy(cache(task.support.features(1)), task.support.labels_N).backward()
    assert keys.grad is not None
    step = 1e-3 * keys.grad / (keys.grad.abs() + 1e-4)
    expected = replace(cache, keys_ND=(keys * (1 - 1e-5) - step).detach())
    torch.testing.assert_close(moved[0], expected(problem.test_ND), rtol=1e-5, atol=1e-4)


def test_the_search_hides_an_images_own_key(backbone: Backbone) -> None:
    """No key is near another image, so all pairs of alpha and beta tie, and the first pair wins."""
    labels = torch.arange(3).repeat(2)
    features = torch.eye(6, 9)
    head = F.normalize(torch.eye(3, 9)[[1, 2, 0]] + 0.01, dim=-1)
    task = frozen_task(backbone, lambda view: features, labels, head)
    cache = build_cache(task, 1, 1.0, 5.5)
    chosen, how = choose_alpha_beta(task, cache, CacheSettings(alpha_max=200.0))
    assert how["search"] == "leave one out"
    assert chosen.beta == 0.1
    shown = search_alpha_beta(
        100 * features @ head.T, features @ cache.keys_ND.T, cache.values_NC, labels, [5.5], [0.1, 190.0]
    )
    assert shown == (5.5, 190.0), "an image that finds itself would ask for all of the cache"
