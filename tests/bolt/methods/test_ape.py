"""APE and APE-T against the official code."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.ape import ApeSettings, adapt, best_channels, channel_similarity, image_weights, refine
from bolt.methods.ape_t import ApeTSettings
from bolt.methods.ape_t import adapt as adapt_t
from bolt.methods.common.feature_cache import build_cache, search_alpha_beta
from bolt.task.classifiers import CacheClassifier
from tests.bolt.methods.third_vectors import close, vector, world_task
from tests.helpers.adapting import classifier, with_curve
from tests.helpers.frozen_tasks import clip_like

FIXED = ApeSettings(
    passes=1, alpha=2.0, search="fixed", channels=10 / 16, similarity_weight=0.7, variance_weight=0.3
)  # fmt: skip


def test_channels_weights_and_logits_are_the_official_ones(backbone: Backbone) -> None:
    task = world_task(backbone)
    text, support = vector("world/text").double(), vector("world/support").double()
    onehot = F.one_hot(vector("world/labels"), 6).double()
    similarity = channel_similarity(text, support, onehot)
    close(similarity, "ape/similarity")
    close(text.var(dim=0), "ape/variance")
    channels = best_channels(text, similarity, 10 / 16, (0.7, 0.3))
    assert channels.tolist() == vector("ape/channels").tolist()
    reduced = [F.normalize(part[:, channels], dim=-1) for part in (text, support)]
    weights = image_weights(reduced[0], reduced[1], vector("world/labels"), 0.1)
    own = (reduced[1] @ reduced[0].T).softmax(dim=-1).gather(1, vector("world/labels")[:, None])[:, 0]
    torch.testing.assert_close(
        torch.log2((1 + 1e-6) / (own + 1e-6)), vector("ape/kl_bits").double(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(weights, torch.exp(0.1 * vector("ape/kl_bits").double()), rtol=1e-4, atol=1e-5)
    close(adapt(task, FIXED).classify(vector("world/test")), "ape/logits_before_search", atol=1e-3)


def test_the_search_gives_the_official_alpha_and_beta(backbone: Backbone) -> None:
    """The official search has gamma in an outer loop. Here the best gamma of that loop is given."""
    beta, alpha, gamma = vector("ape/grid_best").tolist()
    cache = refine(build_cache(world_task(backbone), 1, 2.0, 1.0), replace(FIXED, gamma=gamma))
    queries, labels = vector("world/test"), vector("world/test_labels")
    betas, alphas = [0.1 + 1.725 * i for i in range(4)], [0.1 + 1.38 * i for i in range(5)]
    text_logits = 100 * queries @ vector("world/text").T
    found = search_alpha_beta(text_logits, cache.affinity(queries), cache.values_NC, labels, betas, alphas)
    assert found == (pytest.approx(beta), pytest.approx(alpha))
    close(replace(cache, beta=beta, alpha=alpha)(queries), "ape/logits_best", atol=1e-3)


def test_the_training_of_ape_t_follows_the_official_code(backbone: Backbone) -> None:
    raw = vector("ape_t/train_raw")
    task, losses = with_curve(world_task(backbone, raw))
    settings = ApeTSettings(passes=1, epochs=6, channels=10 / 16)
    views = {1: vector("world/support")}
    support = replace(task.support, features=lambda view: views.pop(view, raw))  # the cache reads view 1 first
    adapted = adapt_t(replace(task, support=support), settings)
    cache = classifier(adapted, CacheClassifier)
    assert losses == pytest.approx(vector("ape_t/losses").tolist(), rel=1e-4)
    channels = vector("ape_t/channels_fresh")
    residual = (cache.head_CD - vector("world/text"))[:, channels]
    close(residual, "ape_t/residual_Cq")
    close(cache.values_NC.sum(dim=1), "ape_t/value_weights")
    close(adapted.classify(vector("world/test")), "ape_t/logits_init_alpha_beta", atol=1e-3)
    assert adapted.trainable_parameters == 6 * 10 + 24


def test_classes_of_unequal_size_and_a_single_class(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4).task
    rows = torch.arange(25)
    features = task.support.features
    support = replace(task.support, labels_N=task.support.labels_N[rows], features=lambda view: features(view)[rows])
    assert torch.isfinite(adapt(replace(task, support=support), ApeSettings()).classify(features(0))).all()
    one = replace(task, head_CD=task.head_CD[:1], support=replace(task.support, labels_N=torch.zeros(40).long()))
    for made in (adapt(one, ApeSettings()), adapt_t(one, ApeTSettings(epochs=2))):
        assert torch.isfinite(made.classify(features(0))).all()
