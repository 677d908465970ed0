"""LP++: a linear probe blended with the text head per class, in steps that need no tuning (Huang et al., 2024).

``logits_c = w_c . f + b_c + alpha_c (t_c . f)`` for unit f and unit text embeddings t; (w, b) and alpha take turns in
full-batch gradient steps. Start: w_c is the mean of class c's features, b is 0, and alpha_c is 250 times the mean over
the classes of (mean feature . text embedding), about 60 for CLIP, so that the text leads.

Step sizes. The Hessian of the cross-entropy in the logits is at most 1/2 (Boehning, 1992). With F1 the features with a
one appended for the bias, the gradient in (w, b) of all classes together is Lipschitz with
``lambda_max(F1^T F1) / (2 N)``, and that in alpha with ``max_c sum_i (t_c . f_i)^2 / (2 N)``. Without momentum, steps
of the inverse of these cannot raise the loss. The official step in w, ``4 N / lambda_max(F^T F)``, bounds each class
alone and forgets the bias: it is four to six times too long for such a promise, and momentum 0.9 goes ten times as far
again. Here momentum 0.75 makes up for the shorter step: in the long run it goes about as far as the official step
without its momentum. On drawn features of 10 and 50 classes, no momentum left 300 steps too few for many classes and
shots, and 0.9 forgot the text at one or two shots.

Each of the ``steps`` sees the next of ``views`` augmented views, over and over, with the smallest of the views' sizes;
one view is the paper's method. No label but the support's is used: the last step is kept, where the official code
keeps the best one on labelled validation images.

``variant: official_code`` repeats the official loop: w starts at the sum of the features; b is random; momentum 0.9;
alpha moves every tenth step, against the sum of all its gradients so far, for they are never set back to zero. The
preset of that name takes its single view too.

The switch ``lp_plus_plus: as_published`` does as the BOLT authors' code: the official sizes, above 4, become learning
rates of AdamW, which moves every number by about its rate whatever the gradient. Text and class means are gone after
one step. Their epochs re-encode the images; here they cycle through ``views``. They swept the weight decay on the test
split: the ``candidates``.

Shape legend: N support images, B batch, C classes, D joint embedding width, E = D + 1 with the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from bolt.methods.base import Method, register
from bolt.methods.common.blend import Blend, initial_blend, official_steps, safe_steps
from bolt.methods.common.frozen_features import unit_support_features
from bolt.seeds import torch_generator
from bolt.task.task import Adapted, Task
from bolt.training.loop import Diverged, TrainingRecipe, fit
from bolt.training.objectives import cross_entropy

_OFFICIAL_MOMENTUM, _ALPHA_EVERY = 0.9, 10
"""Of the official code."""
_DECAYS = (0.0, 0.01, 0.1)
"""The BOLT authors' sweep."""


@dataclass(frozen=True)
class LpPlusPlusSettings:
    """Attributes:
    steps: full-batch steps; epochs under ``as_published``.
    views: augmented views the steps cycle through.
    variant: ``paper`` or ``official_code``, see the module.
    step: share of the step sizes that is used; the authors use 0.1 for remote sensing under ``as_published``.
    momentum: of (w, b) in the paper's variant.
    weight_decay: of AdamW under ``as_published``; else none.
    """

    steps: int = 300
    views: int = 20
    variant: str = "paper"
    step: float = 1.0
    momentum: float = 0.75
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.variant not in ("paper", "official_code"):
            raise ValueError(f"variant is 'paper' or 'official_code', not {self.variant!r}")
        if min(self.steps, self.views) < 1 or not self.step > 0 or not self.weight_decay >= 0:
            raise ValueError("steps and views are at least 1, step is positive, weight_decay is not negative")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum lies in [0, 1), unlike {self.momentum}")


Step = Callable[[int, Tensor], Tensor]
"""``step(number, unit_ND)`` moves the blend and returns the loss before it moved."""


def adapt(task: Task, settings: LpPlusPlusSettings) -> Adapted:
    """Train the blend as the settings' variant, or the protocol's switch, asks for."""
    published = task.protocol.lp_plus_plus == "as_published"
    official = published or settings.variant == "official_code"
    device = task.backbone.device
    head_CD, labels_N = task.head_CD.to(device, torch.float32), task.support.labels_N.to(device)

    @cache
    def view_of(view: int) -> Tensor:
        return unit_support_features(task, view + 1)

    first_ND = view_of(0)
    blend = initial_blend(first_ND, labels_N, head_CD, "sum" if official else "mean")
    if official:
        blend.weight_CE[:, -1] = random_bias(task, head_CD.shape[1]).to(device)
        sizes = [official_steps(first_ND, head_CD)]
    else:
        sizes = [safe_steps(view_of(view), head_CD) for view in range(settings.views)]
    rates = settings.step * min(of_w for of_w, _ in sizes), settings.step * min(of_alpha for _, of_alpha in sizes)
    if published:
        _train_as_published(task, settings, blend, labels_N, view_of, rates)
    elif official:
        _train(task, settings, blend, official_step(blend, labels_N, rates), view_of, rates[0])
    else:
        _train(task, settings, blend, step_in_turns(blend, labels_N, rates, settings.momentum), view_of, rates[0])
    return blend.adapted()


def step_in_turns(blend: Blend, labels_N: Tensor, rates: tuple[float, float], momentum: float) -> Step:
    """A gradient step with momentum in (w, b), then one in alpha at the new (w, b)."""
    velocity_CE = torch.zeros_like(blend.weight_CE)

    def step(number: int, unit_ND: Tensor) -> Tensor:
        loss, by_weight_CE, _ = blend.gradients(unit_ND, labels_N)
        blend.weight_CE.sub_(rates[0] * velocity_CE.mul_(momentum).add_(by_weight_CE))
        _, _, by_alpha_C = blend.gradients(unit_ND, labels_N)
        blend.alpha_C.sub_(rates[1] * by_alpha_C)
        return loss

    return step


def official_step(blend: Blend, labels_N: Tensor, rates: tuple[float, float]) -> Step:
    """Gradient descent with momentum in (w, b); every tenth step moves alpha by the sum of all its gradients so far."""
    velocity_CE, alphas_C = torch.zeros_like(blend.weight_CE), torch.zeros_like(blend.alpha_C)

    def step(number: int, unit_ND: Tensor) -> Tensor:
        loss, by_weight_CE, by_alpha_C = blend.gradients(unit_ND, labels_N)
        blend.weight_CE.sub_(rates[0] * velocity_CE.mul_(_OFFICIAL_MOMENTUM).add_(by_weight_CE))
        alphas_C.add_(by_alpha_C)
        if (number + 1) % _ALPHA_EVERY == 0:
            blend.alpha_C.sub_(rates[1] * alphas_C)
        return loss

    return step


def random_bias(task: Task, width: int) -> Tensor:
    """The bias (C,) of a new linear layer on ``width`` inputs: uniform within 1 / sqrt(width)."""
    generator = torch_generator("lp++ bias", task.dataset, task.seed)
    bound: float = width**-0.5
    return bound * (2 * torch.rand(len(task.head_CD), generator=generator) - 1)


def _train(
    task: Task,
    settings: LpPlusPlusSettings,
    blend: Blend,
    step: Step,
    view_of: Callable[[int], Tensor],
    rate: float,
) -> None:
    """Full-batch steps. Raises :class:`bolt.training.loop.Diverged` for a loss that is NaN or infinite."""
    for number in range(settings.steps):
        loss = float(step(number, view_of(number % settings.views)))
        if not math.isfinite(loss):
            raise Diverged(f"the loss of step {number} is {loss}")
        task.report(number, {"train_loss": loss, "learning_rate": rate})
        task.after_epoch(number, blend.adapted)


def _train_as_published(
    task: Task,
    settings: LpPlusPlusSettings,
    blend: Blend,
    labels_N: Tensor,
    view_of: Callable[[int], Tensor],
    rates: tuple[float, float],
) -> None:
    """The step sizes of gradient descent as AdamW's learning rates, in batches of 32."""
    blend.weight_CE.requires_grad_()
    blend.alpha_C.requires_grad_()
    # Only w and b are clipped there, together, so the loop's own clipping will not do.
    blend.weight_CE.register_hook(lambda gradient: gradient / gradient.norm().clamp_min(1.0))  # type: ignore[no-untyped-call]
    recipe = TrainingRecipe(
        epochs=settings.steps,
        batch_size=32,
        learning_rate=rates[0],
        weight_decay=settings.weight_decay,
        warmup_fraction=0.0,
        clip_norm=0.0,
    )

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        rows = rows.to(labels_N.device)
        return cross_entropy(blend.logits(view_of(epoch % settings.views)[rows]), labels_N[rows])

    fit(
        [blend.weight_CE, blend.alpha_C],
        loss_of_rows,
        task.support.order,
        recipe,
        task.protocol,
        task.report,
        on_epoch_end=lambda epoch, state: task.after_epoch(epoch, blend.adapted),
        relative_rates=[1.0, rates[1] / rates[0]],
    )


register(
    Method(
        name="lp_plus_plus",
        title="LP++",
        paper="https://arxiv.org/abs/2404.02285",
        settings_class=LpPlusPlusSettings,
        adapt=adapt,
        presets={"official_code": {"variant": "official_code", "views": 1}},
        baseline_crop=True,
        candidates=lambda settings: tuple(replace(settings, weight_decay=decay) for decay in _DECAYS),
        support_feature_views=lambda settings: settings.views,
        test_settings={"steps": 4, "views": 2},
    )
)
