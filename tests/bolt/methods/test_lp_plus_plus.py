"""LP++ against the official code's numbers, its step sizes against float64, and the text that it must not forget."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.blend import Blend, initial_blend, official_steps, safe_steps
from bolt.methods.lp_plus_plus import LpPlusPlusSettings, adapt, official_step, random_bias
from bolt.protocol import PUBLISHED, STRICT
from bolt.task.classifiers import append_one
from tests.bolt.methods.test_tip_adapter import HEAD, KEYS, LABELS
from tests.helpers.adapting import with_curve
from tests.helpers.frozen_tasks import clip_like

AS_PUBLISHED = STRICT.with_switches(lp_plus_plus="as_published")


def test_step_sizes_and_start_reproduce_the_official_code() -> None:
    of_w, of_alpha = official_steps(KEYS, HEAD)
    blend = initial_blend(KEYS, LABELS, HEAD, "sum")
    assert of_w == pytest.approx(6.0808244, abs=1e-4)
    assert of_alpha == pytest.approx(0.705578, abs=1e-5)
    torch.testing.assert_close(blend.alpha_C, torch.full((3,), 103.464415), rtol=0, atol=1e-3)


def test_the_official_variant_reproduces_the_official_trajectory() -> None:
    """The bias starts at zero."""
    blend = initial_blend(KEYS, LABELS, HEAD, "sum")
    step = official_step(blend, LABELS, official_steps(KEYS, HEAD))
    losses = [float(step(0, KEYS))]
    close = torch.testing.assert_close
    close(blend.weight_CE[0, :3], torch.tensor([1.469231, 2.137501, 0.642668]), rtol=0, atol=1e-3)
    close(blend.weight_CE[:, -1], torch.tensor([1.013470, 0.912761, -1.926231]), rtol=0, atol=1e-3)
    losses += [float(step(number, KEYS)) for number in range(1, 10)]
    assert losses[0] == pytest.approx(19.862379, abs=1e-3)
    assert losses[9] == pytest.approx(0.118233, abs=1e-2)
    close(blend.alpha_C, torch.tensor([103.613136, 103.180664, 103.022552]), rtol=0, atol=1e-2)
    close(blend.weight_CE[0, :3], torch.tensor([13.295326, 28.084904, -1.012186]), rtol=0, atol=1e-2)
    for number in range(10, 20):
        step(number, KEYS)
    close(blend.alpha_C, torch.tensor([103.761810, 102.903221, 102.567299]), rtol=0, atol=1e-2)
    for number in range(20, 30):
        step(number, KEYS)
    close(blend.alpha_C, torch.tensor([103.911156, 102.624718, 102.112045]), rtol=0, atol=1e-2)
    close(blend.weight_CE[:, -1], torch.tensor([-16.767511, 5.388164, 11.379349]), rtol=0, atol=1e-2)


def test_the_gradients_are_autograds() -> None:
    blend = initial_blend(KEYS.double(), LABELS, HEAD.double(), "mean")
    weight, alpha = blend.weight_CE.clone().requires_grad_(), (blend.alpha_C / 20).requires_grad_()
    traced = Blend(blend.head_CD, weight, alpha)
    with torch.no_grad():
        loss, by_weight, by_alpha = traced.gradients(KEYS.double(), LABELS)
    expected = torch.autograd.grad(F.cross_entropy(traced.logits(KEYS.double()), LABELS), (weight, alpha))
    assert float(by_alpha.abs().max()) > 1e-3, "the example must have a slope"
    torch.testing.assert_close((by_weight, by_alpha), expected)
    assert float(loss) == pytest.approx(float(F.cross_entropy(traced.logits(KEYS.double()), LABELS).detach()), rel=1e-5)


def test_the_safe_steps_invert_a_bound_on_the_curvature() -> None:
    """No Hessian at random parameters exceeds the bound, and one reaches half of it (autograd in float64)."""
    features, head = KEYS.double(), HEAD.double()
    of_w, of_alpha = safe_steps(features, head)
    generator = torch.Generator().manual_seed(0)
    sharpest = {"w": 0.0, "alpha": 0.0}
    for size in (0.0, 0.3, 3.0):
        weight = size * torch.randn(3, 9, generator=generator, dtype=torch.float64)
        alpha = 4 * size * torch.randn(3, generator=generator, dtype=torch.float64)

        def loss_of_w(flat: Tensor, alpha: Tensor = alpha) -> Tensor:
            return F.cross_entropy(Blend(head, flat.view(3, 9), alpha).logits(features), LABELS)

        def loss_of_alpha(alpha: Tensor, weight: Tensor = weight) -> Tensor:
            return F.cross_entropy(Blend(head, weight, alpha).logits(features), LABELS)

        for name, loss, at in (("w", loss_of_w, weight.flatten()), ("alpha", loss_of_alpha, alpha)):
            hessian = torch.autograd.functional.hessian(loss, at)
            sharpest[name] = max(sharpest[name], float(torch.linalg.eigvalsh(hessian)[-1]))
    assert 0.5 / of_w < sharpest["w"] <= 1 / of_w
    assert 0.1 / of_alpha < sharpest["alpha"] <= 1 / of_alpha
    assert of_w == pytest.approx(12 / float(torch.linalg.matrix_norm(append_one(features), ord=2) ** 2), rel=1e-6)


@pytest.mark.parametrize("shots", [1, 4, 16])
def test_without_momentum_no_step_raises_the_loss(shots: int, backbone: Backbone) -> None:
    task, losses = with_curve(clip_like(backbone, shots=shots).task)
    adapt(task, LpPlusPlusSettings(views=1, momentum=0.0, search="fixed"))
    assert len(losses) == 300
    assert all(after <= before * (1 + 1e-5) for before, after in pairwise(losses))


@pytest.mark.slow
@pytest.mark.parametrize(("shots", "classes"), [(1, 10), (4, 40), (16, 10)])
def test_the_text_is_not_forgotten_at_any_number_of_shots(shots: int, classes: int, backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=shots, classes=classes)
    task, losses = with_curve(problem.task)
    assert problem.accuracy(adapt(task, LpPlusPlusSettings())) > problem.zero_shot() + 3
    assert losses[-1] < 0.5 * losses[0]
    assert max(losses[1:]) <= 1.5 * losses[0]


def test_the_start_is_the_class_means_beside_the_text(backbone: Backbone) -> None:
    blend = initial_blend(KEYS, LABELS, HEAD, "mean")
    torch.testing.assert_close(blend.weight_CE[1], torch.cat([KEYS[2:4].mean(dim=0), torch.zeros(1)]))
    some = initial_blend(KEYS[:4], LABELS[:4], HEAD, "mean")
    assert not some.weight_CE[2].any(), "a class without an image starts at zero"
    cosines = (KEYS[:4] * HEAD[LABELS[:4]]).sum(dim=-1)
    torch.testing.assert_close(some.alpha_C, torch.full((3,), 250 * float(cosines.mean())))


def test_the_random_bias_is_keyed_by_dataset_and_seed(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=1).task
    bias = random_bias(task, 64)
    assert torch.equal(bias, random_bias(task, 64))
    assert not torch.equal(bias, random_bias(replace(task, seed=2), 64))
    assert 0 < bias.abs().max() <= 1 / 8


def test_as_published_forgets_the_text_at_one_shot(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=1, protocol=AS_PUBLISHED)
    task, rates = with_curve(problem.task, "learning_rate")
    adapted = adapt(task, LpPlusPlusSettings())
    assert len(rates) == 300
    assert 4 < rates[0] < 12
    assert problem.accuracy(adapted) < problem.zero_shot() - 5
    sound = adapt(replace(task, protocol=STRICT), LpPlusPlusSettings())
    assert problem.accuracy(sound) > problem.zero_shot()


def test_the_first_published_step_throws_every_weight_by_its_rate(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=1, protocol=AS_PUBLISHED)
    task, unit = problem.task, F.normalize(problem.task.support.features(1), dim=-1)
    adapted = adapt(task, LpPlusPlusSettings(steps=1, weight_decay=0.1))
    of_w, of_alpha = official_steps(unit, task.head_CD)
    blend = initial_blend(unit, task.support.labels_N, task.head_CD, "sum")
    blend.weight_CE[:, -1] = random_bias(task, task.head_CD.shape[1])
    _, by_weight, by_alpha = blend.gradients(unit, task.support.labels_N)
    after = Blend(
        task.head_CD,
        blend.weight_CE * (1 - 0.1 * of_w) - of_w * by_weight.sign(),
        blend.alpha_C * (1 - 0.1 * of_alpha) - of_alpha * by_alpha.sign(),
    )
    queries = problem.test_ND
    torch.testing.assert_close(adapted.classify(queries), after.logits(F.normalize(queries, dim=-1)), rtol=2e-2, atol=1)


def test_the_authors_sweep_is_over_the_weight_decay(backbone: Backbone) -> None:
    method = METHODS["lp_plus_plus"]
    settings = method.configure({"steps": 5, "views": 2})
    assert [candidate.weight_decay for candidate in method.candidates(settings)] == [0.0, 0.01, 0.1]
    problem = clip_like(backbone, shots=2, protocol=PUBLISHED)
    adapted = method.run(replace(problem.task, oracle=problem.accuracy), settings)
    assert "selected_weight_decay" in adapted.details
