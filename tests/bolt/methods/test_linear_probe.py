"""The linear probe leaves zero-shot; the BOLT authors' linear probe does not."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.linear_probe import LinearProbeSettings, adapt
from bolt.protocol import PUBLISHED, STRICT
from bolt.task.task import Adapted
from tests.helpers.adapting import with_curve
from tests.helpers.frozen_tasks import WIDTH, Problem, clip_like

AS_PUBLISHED = STRICT.with_switches(linear_probe="as_published")


def moved(problem: Problem, adapted: Adapted) -> float:
    """Return the largest difference of a test logit from the zero-shot logit."""
    task = problem.task
    zero_shot = task.text_head(problem.test_ND)
    return float((adapted.classify(problem.test_ND) - zero_shot).abs().max())


def test_the_sound_probe_moves_and_the_published_one_hardly_does(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=16)
    frozen = clip_like(backbone, shots=16, protocol=AS_PUBLISHED)
    sound, published = (adapt(each.task, LinearProbeSettings()) for each in (problem, frozen))
    assert moved(problem, sound) > 3
    assert 0 < moved(frozen, published) < 0.3
    assert problem.accuracy(sound) > problem.zero_shot() + 20
    assert abs(frozen.accuracy(published) - frozen.zero_shot()) < 3


def test_as_published_halves_the_rate_after_every_epoch_without_a_warm_up(backbone: Backbone) -> None:
    task, rates = with_curve(clip_like(backbone, shots=4, protocol=AS_PUBLISHED).task, "learning_rate")
    adapt(task, LinearProbeSettings(epochs=4))
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4])


def test_as_published_no_weight_moves_further_than_all_rates_together(backbone: Backbone) -> None:
    """A step of AdamW moves a number by about the rate, so it moves a logit by at most ``rate * scale * sqrt(D)``."""
    problem = clip_like(backbone, shots=16, protocol=AS_PUBLISHED)
    steps_an_epoch = 5
    reach = 2e-3 * steps_an_epoch
    assert moved(problem, adapt(problem.task, LinearProbeSettings())) <= 1.5 * reach * (WIDTH**0.5 + 1)


def test_the_authors_two_rates_are_tried_and_the_better_on_test_is_kept(backbone: Backbone) -> None:
    method = METHODS["linear_probe"]
    problem = clip_like(backbone, shots=8, protocol=PUBLISHED.with_switches(linear_probe="sound"))
    candidates = method.candidates(LinearProbeSettings())
    assert [(each.learning_rate, each.search) for each in candidates] == [(1e-3, "fixed"), (1e-4, "fixed")]
    chosen = method.run(replace(problem.task, oracle=problem.accuracy), LinearProbeSettings())
    assert problem.accuracy(chosen) == max(problem.accuracy(adapt(problem.task, each)) for each in candidates)
    assert chosen.details["selected_learning_rate"] in {"0.001", "0.0001"}


def test_a_step_is_adamws_on_the_scaled_head(backbone: Backbone) -> None:
    """One full batch, no warm-up, no clipping: every entry moves by its rate against the sign of its gradient."""
    problem = clip_like(backbone, shots=2)
    task = problem.task
    settings = LinearProbeSettings(epochs=1, batch_size=100, warmup_fraction=0.0, clip_norm=0.0, search="fixed")
    head = task.head_CD.clone().requires_grad_()
    logits = 100 * F.linear(F.normalize(task.support.features(1), dim=-1), head)
    F.cross_entropy(logits, task.support.labels_N).backward()
    bias_gradient = 100 * (logits.softmax(dim=-1) - F.one_hot(task.support.labels_N, 10)).mean(dim=0)
    stepped, bias = head - 1e-3 * head.grad.sign(), -1e-3 * bias_gradient.sign()
    expected = 100 * F.linear(F.normalize(problem.test_ND, dim=-1), stepped, bias)
    torch.testing.assert_close(adapt(task, settings).classify(problem.test_ND), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("classes", [10, 70])
def test_with_one_image_a_class_the_steps_move_by_a_fixed_amount(classes: int, backbone: Backbone) -> None:
    task = clip_like(backbone, shots=1, classes=classes).task
    details = adapt(task, LinearProbeSettings()).details
    steps = 20 * math.ceil(classes / 32)
    assert details["learning_rate"] == pytest.approx(0.47 / (steps * WIDTH**0.5))
    assert "one image" in str(details["search"])


def test_a_probe_that_held_out_images_show_to_be_worse_than_the_text_says_so(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4, signal=1.0, text_error=0.05).task
    harmful = adapt(task, LinearProbeSettings(logit_steps=(1000.0,), epochs=2)).details
    assert "worse_than_zero_shot" in harmful
    assert "worse_than_zero_shot" not in adapt(task, LinearProbeSettings(logit_steps=(1e-6,), epochs=2)).details
