"""ZERO, MTA and TPT, which adapt to one test image, against the official codes."""

from dataclasses import replace

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.frozen_features import entropies
from bolt.methods.common.prompts import LearnedPrompts, word_embeddings
from bolt.methods.mta import MtaSettings, find_mode
from bolt.methods.tpt import TptSettings, entropy_of_mean, tune
from bolt.methods.zero import vote
from tests.bolt.methods.third_vectors import NAMES, close, small_backbone, vector
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import make_task

METHODS_OF_ONE_IMAGE = sorted(name for name, method in METHODS.items() if "tta_image" in method.tracks)


def test_the_votes_of_zero_are_the_official_ones() -> None:
    logits = 100 * vector("world/views") @ vector("world/text").T
    votes = torch.stack([vote(of_image.double(), 0.3) for of_image in logits])
    assert torch.equal(votes.argmax(dim=-1), vector("zero/prediction"))
    torch.testing.assert_close(votes.float(), vector("zero/p_bar_fp32"), rtol=0, atol=1e-3)


@pytest.mark.parametrize("logits", [[[5.0, 4.9, 0.0]], [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]])
def test_few_views_vote_too_and_the_larger_sum_decides_where_no_other_view_does(logits: list[list[float]]) -> None:
    assert int(vote(torch.tensor(logits), 1.0).argmax()) == 0


def test_the_modes_of_mta_are_the_official_ones() -> None:
    found = [find_mode(views, vector("world/text"), 100.0, MtaSettings()) for views in vector("world/views")]
    close(torch.stack(found), "mta/mode")
    close(100 * torch.stack(found) @ vector("world/text").double().T, "mta/logits", atol=1e-3)
    alike = find_mode(vector("world/views")[0, :1].expand(5, -1), vector("world/text"), 100.0, MtaSettings())
    torch.testing.assert_close(alike.float(), vector("world/views")[0, 0])


def test_the_step_of_tpt_is_the_official_one() -> None:
    backbone, settings = small_backbone(), TptSettings(kept=0.3)
    start = word_embeddings(backbone, "a photo of a")
    prompts = LearnedPrompts(backbone, NAMES, len(start))
    with torch.no_grad():
        text = prompts.encode(start)
    for number, views in enumerate(vector("tpt/views")):
        logits = 100 * views @ text.T
        torch.testing.assert_close(entropies(logits), vector("tpt/entropy")[number], rtol=1e-3, atol=1e-4)
        kept = entropies(logits).argsort()[:3]
        assert sorted(kept.tolist()) == vector("tpt/selected")[number].tolist()
        assert float(entropy_of_mean(logits[kept])) == pytest.approx(float(vector("tpt/loss")[number]), rel=1e-3)
        context = tune(prompts, start, views, 100.0, settings)
        torch.testing.assert_close(context, vector("tpt/context_after")[number], rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            after = 100 * prompts.encode(context) @ views[0]
        torch.testing.assert_close(after, vector("tpt/logits_after")[number], rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("name", sorted(set(METHODS_OF_ONE_IMAGE) - {"zero_shot"}))
def test_an_image_is_predicted_without_the_others(name: str, backbone: Backbone) -> None:
    method = METHODS[name]
    settings = method.configure(quick_settings(method.name), "tta_image")
    task = make_task(backbone, unlabelled=True)
    whole = method.adapt(task, settings).fixed_NC
    unlabelled = task.test_images
    rows = torch.tensor([4, 1])
    part = replace(unlabelled, size=2, view_features=lambda count: unlabelled.view_features(count)[rows])
    alone = method.adapt(replace(task, unlabelled=part), settings).fixed_NC
    assert whole is not None
    assert alone is not None
    torch.testing.assert_close(alone, whole[rows])


STREAM = sorted(name for name, method in METHODS.items() if "tta_stream" in method.tracks and method.uses_support)


def test_there_are_such_methods() -> None:
    assert set(STREAM) >= {"tda", "dmn"}


@pytest.mark.parametrize("name", STREAM)
def test_later_images_change_no_prediction(name: str, backbone: Backbone) -> None:
    method = METHODS[name]
    settings = method.configure(quick_settings(method.name), "tta_stream")
    task = make_task(backbone, unlabelled=True)
    images, features = task.test_images, task.test_images.features()
    order = torch.arange(len(images))
    first = replace(images, order=lambda stream, number, count: order)
    seen = len(images) // 2
    other = replace(first, features=lambda: torch.cat([features[:seen], features[seen:].flip(0) * -1]))
    whole = method.adapt(replace(task, unlabelled=first), settings).fixed_NC
    changed = method.adapt(replace(task, unlabelled=other), settings).fixed_NC
    assert whole is not None
    assert changed is not None
    assert torch.equal(whole[:seen], changed[:seen])
    assert not torch.equal(whole[seen:], changed[seen:])
